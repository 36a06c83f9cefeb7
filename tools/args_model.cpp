// Options shared by several commands, with the engine or the C API: model and device, cache budget, sampling.
#include "tools/args_model.h"
#include "engine/core/error.h"
#include "engine/core/limits.h"
#include "engine/core/split.h"
#include "engine/core/utf8.h"
#include "models/encoder_file.h"
#include "tools/args_llama.h"
#include "tools/hub/local.h"
#include "tools/hub/names.h"
#include "tools/hub/pull.h"
#include "tools/terminal.h"
#include <algorithm>
#include <charconv>
#include <fmt/ranges.h>
#include <limits>

namespace kvrun {

// The encoder of a repository, if kvrun runs it with the model; else the reason is printed.
constexpr int64_t kMostImageTokens = 65536;
static std::string usable_encoder(const ModelPath& m) {
	if (m.encoder.empty()) return "";
	try {
		read_encoders(Gguf::open(m.encoder), read_config(Gguf::open(m.path)));
		return m.encoder;
	} catch (const Error& e) {
		say_stats(fmt::format("its encoder is not used: {}", one_line(e.what())));
		return "";
	}
}

void add_hub(Command& c, Option* option, std::string& model, VisionArgs* vision) {
	const auto name = std::make_shared<std::string>(), file = std::make_shared<std::string>();
	const Option* hub = add_text(c, "--hf-repo,-hf,-hfr", *name, kHubModel,
	                             "a model of huggingface.co, which is fetched unless it is here (kvrun help pull)")
	                        ->group(option->group_name);
	option->other = hub, option->names_model = true;
	add_text(c, "--hf-file,-hff", *file, kFile, "with -hf USER/REPO: this file of the repository")
	    ->needs(hub)
	    ->group(option->group_name);
	c.before_run.push_back([option, hub, name, file, &model, vision] {
		if (option->is_required && !hub->count && !option->count)
			fail(Code::Invalid, "{} is required, or {}", option->shown(), hub->shown());
		if (hub->count && option->count) fail(Code::Invalid, "{} and -hf are both given; give one", option->shown());
		if (!hub->count && !option->count) return;
		if (vision && vision->none && !vision->mmproj.empty())
			fail(Code::Invalid, "--mmproj and --no-mmproj are both given; give one");
		const bool encoder = vision && vision->read && !vision->none && vision->mmproj.empty();
		const auto repo = as_repo(*name); // as in llama.cpp, the file counts where a quant is given, too
		const std::string wanted = file->empty() ? *name : (repo ? repo->repo : *name) + ":" + *file;
		const ModelPath found = hub->count ? model_of_hub(wanted, encoder) : resolve_model(model);
		model = found.path;
		if (encoder) vision->mmproj = usable_encoder(found);
	});
}

Option* add_model(Command& c, std::string& model, const char* group, VisionArgs* vision) {
	Option* o = add_text(c, "-m,--model,model", model, kModelFile,
	                     "the model: a .gguf file (the first part of a split one), a name of kvrun list or its "
	                     "beginning, or synth:NAME:TYPE (kvrun help synth)")
	                ->group(group);
	add_hub(c, o, model, vision);
	return o;
}

// By llama.cpp's names: none, Vulkan0, CUDA1.
static std::string device_of(const std::string& name) {
	if (name == "none") return "cpu";
	for (const std::string_view backend : {"Vulkan", "CUDA"}) {
		const std::string_view rest = std::string_view(name).substr(std::min(backend.size(), name.size()));
		if (!name.starts_with(backend) || rest.empty() || rest.find_first_not_of("0123456789") != rest.npos) continue;
		return (backend == "CUDA" ? "cuda:" : "vulkan:") + std::string(rest);
	}
	return name;
}

void add_device(Command& c, std::string& device) {
	c.before_run.insert(c.before_run.begin(), [&device] {
		std::vector<std::string> names;
		for (const std::string_view name : split(device, ',')) names.push_back(device_of(std::string(name)));
		device = fmt::format("{}", fmt::join(names, ","));
	});
	add_text(c, "--device,-dev", device, "NAME",
	         "device to run on: an index or part of a name from kvrun devices, or cpu; several, separated by commas, "
	         "divide the layers. none is cpu, Vulkan0 the first Vulkan device [best; a CPU only if there is no GPU]")
	    ->group(kModelGroup);
}

void add_split(Command& c, std::string& split) {
	add_text(c, "--split,-ts,--tensor-split", split, "N,N",
	         "with several devices, as --device 0,1: layers of each, or numbers in proportion [auto: by speed and free "
	         "memory]")
	    ->group(kModelGroup);
}

std::optional<uint32_t> WeightArgs::layers() const {
	constexpr uint32_t kMost = 100000;
	if (gpu_layers.empty() || gpu_layers == "auto" || gpu_layers == "all" || gpu_layers == "-1") return {};
	uint32_t n = 0;
	const char* end = gpu_layers.data() + gpu_layers.size();
	const auto read = std::from_chars(gpu_layers.data(), end, n);
	if (read.ec != std::errc() || read.ptr != end || n > kMost)
		fail(Code::Invalid, "--gpu-layers is '{}', expected a number from 0 to {}, auto or all", one_line(gpu_layers),
		     kMost);
	return n;
}

void add_weight_options(Command& c, WeightArgs& a) {
	const char* group = "Weights in host memory";
	add_bytes(c, "--weights-budget", a.budget,
	          "most bytes of weights on the device, like 6G; it reads the others over the bus; 0: no limit [0]")
	    ->group(group);
	add_text(c, "-ngl,--gpu-layers,--n-gpu-layers", a.gpu_layers, "N",
	         "most layers on the device, the last ones; one more than the model has: the output, too; auto, all or -1 "
	         "[auto]")
	    ->group(group);
	add_flag(c, "--cpu-moe,-cmoe", a.cpu_moe, "experts of all layers lie in host memory")->group(group);
	add_integer(c, "--n-cpu-moe,-ncmoe", a.n_cpu_moe, 0, 100000, "experts of the first N layers do [0]")->group(group);
	const Option* fit = add_flag(c, "--fit,-fit", a.fit,
	                             "as much more leaves the device as the context needs: the default; off: as --no-fit")
	                        ->switched()
	                        ->group(group);
	add_flag(c, "--no-fit", a.no_fit, "nothing more leaves the device than these options say")->group(group);
	c.before_run.push_back([&a, fit] {
		if (fit->count && a.fit && a.no_fit) fail(Code::Invalid, "--fit and --no-fit are both given; give one of them");
		a.no_fit = a.no_fit || !a.fit;
		if (a.cpu_moe && a.n_cpu_moe) fail(Code::Invalid, "--cpu-moe and --n-cpu-moe are both given; give one of them");
		(void)a.layers();
	});
}

void add_mmproj(Command& c, VisionArgs& a, const char* group) {
	a.read = true;
	add_text(
	    c, "--mmproj,-mm", a.mmproj, kModelFile,
	    "the model's encoder of images or sounds, a .gguf file whose name begins with mmproj: the model reads them "
	    "[the one in the repository of a model of -hf or kvrun list]")
	    ->group(group);
	add_flag(c, "--no-mmproj,--no-mmproj-auto", a.none, "no encoder, even if the model's repository has one")
	    ->group(group);
	add_integer(c, "--image-min-tokens", a.least_tokens, 0, kMostImageTokens,
	            "an image becomes at least so many tokens, where its size decides; 0: the encoder's limit [0]")
	    ->group(group);
	add_integer(c, "--image-max-tokens", a.most_tokens, 0, kMostImageTokens,
	            "and at most so many: fewer take less time and memory, and show less [0]")
	    ->group(group);
	c.before_run.push_back([&a] { // behind add_model()'s, which may have found the encoder
		if ((a.least_tokens || a.most_tokens) && a.mmproj.empty())
			fail(Code::Invalid,
			     "--image-min-tokens and --image-max-tokens are of a vision encoder; give --mmproj FILE");
	});
}

void add_media(Command& c, MediaArgs& a, const std::string& where, const char* group) {
	const std::string end = ", in front of " + where + "; needs --mmproj; the option is repeated for several";
	add_texts(c, "--image", a.images, kFile, "an image: a PNG, JPEG or WebP file" + end)->group(group);
	add_texts(c, "--audio", a.sounds, kFile, "a sound: a WAV, FLAC, Ogg or MP3 file" + end)->group(group);
}

void add_lora(Command& c, std::vector<std::string>& loras, const char* group) {
	add_texts(
	    c, "--lora,--lora-scaled", loras, "FILE[:SCALE]",
	    "a LoRA adapter of the model (.gguf), times a scale [1]; several are separated by commas, or the option is "
	    "repeated")
	    ->group(group);
}

std::string lora_text(const std::vector<std::string>& loras) { return fmt::format("{}", fmt::join(loras, ",")); }

int64_t longest_context() { return kMaxContext; }

void add_model_options(Command& c, ModelArgs& a, const std::string& longest) {
	add_model(c, a.model, kModelGroup, &a.vision)->required();
	add_lora(c, a.loras);
	add_device(c, a.device);
	add_split(c, a.split);
	add_tokens(c, "-c,--ctx-size", a.ctx, 0, longest_context(),
	           "context: " + longest + "; 0: what fits, at most the trained context [0]")
	    ->group(kModelGroup);
	add_tokens(c, "--ubatch-size,-ub", a.ubatch, 1, kMaxUbatch,
	           "prompt tokens that go through a layer at a time; changes speed only [512]")
	    ->group(kModelGroup);
	add_weight_options(c, a.weights);
}

void add_check(Command& c, bool& check) {
	add_flag(c, "--check", check, "run every operation on the cpu backend too and stop at the first difference (slow)")
	    ->group(kModelGroup);
}

void add_kv_budget(Command& c, uint64_t& bytes, const std::string& what) {
	add_bytes(c, "--kv-budget", bytes, "most memory for " + what + ", like 512M or 2GiB; 0: what is free [0]")
	    ->group(kCacheGroup);
}

void add_host_memory(Command& c, ModelArgs& a) {
	add_bytes(c, "--host-budget", a.host_budget,
	          "most host memory for the f16 copies that policies with fetch= read; 0: a quarter of it [0]")
	    ->group(kCacheGroup);
	add_text(c, "--offload-dir", a.offload_dir, kFolder,
	         "keep copies that are over --host-budget in this folder, in a file that ends with the program")
	    ->group(kCacheGroup);
}

// "15043+1", "15043-inf", as llama.cpp has them.
static kvrun_logit_bias read_logit_bias(const std::string& text) {
	kvrun_logit_bias out{};
	const size_t sign = text.find_first_of("+-");
	const std::string token = text.substr(0, sign), bias = sign == text.npos ? "" : text.substr(sign + 1);
	const auto id = std::from_chars(token.data(), token.data() + token.size(), out.token);
	double v = 0;
	const bool never = text.substr(std::min(sign, text.size())) == "-inf";
	const auto number = std::from_chars(bias.data(), bias.data() + bias.size(), v);
	const bool good =
	    id.ec == std::errc() && id.ptr == token.data() + token.size() &&
	    (never || (number.ec == std::errc() && number.ptr == bias.data() + bias.size() && v >= 0 && v < 1e9));
	if (!good)
		fail(Code::Invalid,
		     "--logit-bias is '{}', expected TOKEN+BIAS or TOKEN-BIAS with a token's ID, like 15043+1 or "
		     "15043-inf",
		     one_line(text));
	out.bias = never ? -std::numeric_limits<float>::infinity() : float(text[sign] == '-' ? -v : v);
	return out;
}

static void add_logit_bias(Command& c, std::vector<kvrun_logit_bias>& biases, const char* group) {
	const auto given = std::make_shared<std::vector<std::string>>();
	add_texts(c, "--logit-bias,-l", *given, "TOKEN(+|-)BIAS",
	          "added to the logit of a token, by its ID (kvrun tokenize), as 15043+1; -inf: never this token; may be "
	          "given several times")
	    ->group(group);
	c.before_run.push_back([given, &biases] {
		for (const std::string& text : *given) biases.push_back(read_logit_bias(text));
	});
}

static bool is_replaced_by_mirostat(const std::string& option) {
	for (const char* o :
	     {"--top-k", "--top-p", "--min-p", "--typical", "--top-nsigma", "--xtc-probability", "--dynatemp-range"})
		if (option == o) return true;
	return false;
}

void add_sampling(Command& c, SamplingArgs& a, const std::string& seed_help) {
	const char* group = kSamplingGroup;
	for (const SamplingOption& o : sampling_options()) {
		const int64_t lowest = o.also_minus_one ? -1 : int64_t(o.lowest);
		if (const auto* real = std::get_if<double Sampling::*>(&o.at))
			add_real(c, o.flags, a.**real, o.lowest, o.highest, o.help)->group(group);
		else
			add_integer(c, o.flags, a.*std::get<int64_t Sampling::*>(o.at), lowest, int64_t(o.highest), o.help)
			    ->group(group);
	}
	add_texts(c, "--dry-sequence-breaker", a.dry_breakers, "TEXT",
	          "DRY: a repetition ends at this text; may be given several times; none: nowhere [line break : \" *]")
	    ->group(group);
	add_logit_bias(c, a.logit_bias, group);
	const auto samplers = std::make_shared<std::string>();
	add_text(
	    c, "--samplers", *samplers, "NAME;NAME..",
	    "use only these, in kvrun's order: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature [all]")
	    ->group(group);
	const auto letters = std::make_shared<std::string>();
	add_text(c, "--sampler-seq,--sampling-seq", *letters, "LETTERS", "the same by letters, all of them: edskypmxt")
	    ->group(group);
	add_integer(c, "-s,--seed", a.seed, -1, INT64_MAX, seed_help)->group(group);
	c.before_run.push_back([&c, &a, samplers, letters] {
		if (a.mirostat)
			for (const Option& o : c.options)
				if (o.count && is_replaced_by_mirostat(o.shown()))
					warn_no_effect(o.shown(), "--mirostat decides alone what is kept");
		if (a.dry_breakers == std::vector<std::string>{"none"}) a.dry_breakers.clear();
		if (!samplers->empty() && !letters->empty())
			fail(Code::Invalid, "--samplers and --sampler-seq are both given; give one of them");
		if (!letters->empty()) *samplers = samplers_of(*letters);
		if (!samplers->empty()) choose_samplers(a, *samplers);
		if (a.seed == UINT32_MAX) a.seed = -1; // llama.cpp's word for a random one
	});
}

} // namespace kvrun
