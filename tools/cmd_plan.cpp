// kvrun plan: whether a context fits under a KV cache policy, what the policy stores bit by bit, and how policies
// compare.
#include "backends/split_devices.h"
#include "backends/weight_rows.h"
#include "engine/core/error.h"
#include "engine/core/limits.h"
#include "engine/core/utf8.h"
#include "engine/run/engine.h"
#include "engine/run/image_store.h"
#include "engine/run/tuning_file.h"
#include "models/draft_file.h"
#include "models/lora.h"
#include "models/prediction.h"
#include "tools/args_cache.h"
#include "tools/args_engine.h"
#include "tools/args_llama.h"
#include "tools/args_says.h"
#include "tools/commands.h"
#include "tools/env.h"
#include "tools/hub/local.h"
#include "tools/plan_report.h"
#include "tools/terminal.h"
#include <algorithm>
#include <charconv>
#include <set>

namespace kvrun {
namespace {

constexpr int kDoesNotFit = 6; // exit code

struct PlanArgs {
	std::string kv = "fp16", model, shape, device, split;
	int64_t ctx = 0;      // tokens; 0: the model's trained context, or 4096 for a shape
	int64_t ubatch = 512; // prompt tokens that go through a layer together
	uint64_t memory = 0;  // bytes of free device memory; 0: ask the device
	WeightArgs weights;
	double bus = 0, bandwidth = 0; // bytes per second; 0 if unknown
	std::string draft;             // "mtp": count the model's prediction layer
	std::vector<std::string> loras;
	VisionArgs vision;
	bool json = false;
};

KvShape read_shape(const std::string& text) {
	uint32_t n[3] = {};
	const char *at = text.data(), *end = at + text.size();
	for (int i = 0; i < 3; ++i) {
		const auto r = std::from_chars(at, end, n[i]);
		const bool last = i == 2;
		if (r.ec != std::errc() || (last ? r.ptr != end : r.ptr == end || *r.ptr != 'x') || !n[i])
			fail(Code::Invalid, "--shape is '{}', expected LAYERSxKVHEADSxHEADDIM, as 32x8x128", text);
		at = r.ptr + 1;
	}
	return {n[0], n[1], n[2]};
}

// The memory to plan for: --memory, or the device's free memory, read without opening the device.
void find_memory(const PlanArgs& a, uint32_t n_layers, uint64_t layer_bytes, PlanSubject& s) {
	if (a.memory) {
		s.where = "given by --memory", s.total_bytes = a.memory;
		s.room = {"that card", a.memory};
		if (!a.bus && !weight_options(a.weights).asked()) s.room.mapped_bytes = 0; // the bus is unknown
		return;
	}
	BackendOptions options = backend_options(a.device, /*check=*/false);
	options.split = a.split;
	try {
		const FoundDevices found = find_devices(options, n_layers, layer_bytes);
		const DeviceInfo& d = found.together;
		if (found.devices.size() > 1) say_stats(split_text(found));
		s.where = d.name, s.total_bytes = d.free_bytes;
		s.room = room_of(d);
		const ReadRates& rates = found.rates_together;
		if (!s.bandwidth) s.bandwidth = rates.device > 0 ? rates.device : d.peak_bytes_per_s;
		if (!s.bus) s.bus = rates.bus;
	} catch (const Error&) {
		if (!options.device.empty()) throw; // without a device, policies are described but not whether they fit
	}
}

Gguf model_file(const PlanArgs& a) {
	Gguf file = Gguf::open(a.model);
	file.set_cache_folder(pipeline_cache_folder()); // for what kvrun tune measured
	return file;
}

// Resolves `auto` and `tuned:BITS` for this subject.
Choice chosen(const PlanArgs& a, const PlanSubject& s, const KvPolicy& p) {
	if (!is_choice(p) && a.model.empty()) return {p, "", -1};
	if (s.where.empty() && p.text.starts_with("auto"))
		fail(Code::Invalid, "{} is chosen for a memory, and no device was found; give --memory", one_line(p.text));
	if (const std::string why = is_auto(p) ? why_no_cache(s) : ""; !why.empty())
		fail(Code::OutOfMemory, "{}: {}", one_line(p.text), why);
	const uint64_t budget = memory_account(s.model, s.total_bytes, s.n_tokens).cache;
	const bool or_fewer = !s.requested;
	const uint64_t n = s.n_tokens / (s.layers ? s.layers->policy_block() : 1);
	return a.model.empty() ? choose_policy(p, s.shape, nullptr, n, budget, or_fewer)
	                       : choose_policy(p, s.shape, model_file(a), n, budget, or_fewer);
}

// What --kv all ranks: the methods, the ways to write `turbo` that README recommends, and of a model that was tuned
// those that follow from it.
std::vector<KvPolicy> every_policy(const PlanArgs& a, const PlanSubject& s) {
	std::vector<KvPolicy> out;
	for (const KvPolicy& p : all_policies())
		if (p.name != "turbo") out.push_back(p);
	for (const char* kv : {"turbo4", "turbo3", "turbo3/2", "turbo2", "turbo2/1"}) out.push_back(parse_policy(kv));
	if (a.model.empty() || !read_tuning(model_file(a), s.shape)) return out;
	for (const char* kv : {"tuned:4.24", "tuned:3.24", "tuned:2.74", "tuned:2.24", "tuned:1.74"})
		out.push_back(parse_policy(kv));
	return out;
}

PlanSubject subject_of(const PlanArgs& a) {
	PlanSubject s;
	uint32_t n_layers = 0;
	uint64_t layer_bytes = 0;
	const bool small = !a.draft.empty() && a.draft != "lookup" && a.draft != "mtp";
	const std::string draft_file = small ? resolve_model(a.draft).path : "";
	if (small && draft_kind(Gguf::open(draft_file)) == DraftKind::None)
		fail(Code::Invalid,
		     "--draft is '{}'; plan counts mtp, a file made for the model (EAGLE-3, DFlash, DSpark, an assistant), and "
		     "lookup, which needs no device memory; a small model has a plan of its own",
		     a.draft);
	if (a.model.empty() && !(a.loras.empty() && a.vision.mmproj.empty()))
		fail(Code::Invalid, "--lora and --mmproj are of a model; give -m FILE");
	if ((small || a.draft == "mtp") && a.model.empty())
		fail(Code::Invalid, "--draft {} is of a model; give -m FILE", a.draft);
	if (a.model.empty() == a.shape.empty())
		fail(Code::Invalid, "give one of -m FILE and --shape LAYERSxKVHEADSxHEADDIM");
	if (!a.shape.empty()) {
		s.name = a.shape;
		s.shape = read_shape(a.shape);
		n_layers = s.shape.n_layers;
		s.n_tokens = 4096;
	} else {
		const Gguf file = model_file(a);
		const Config c = read_config(file);
		if (c.encodes) fail_encoder(file.name());
		s.name = c.name.empty() ? a.model : c.name;
		s.is_measured = is_measured_model(a.model, c.name);
		s.layers = CacheLayers(c);
		n_layers = c.n_layers;
		s.shape = s.layers->policy_shape();
		s.n_tokens = std::max(c.max_seq, 1u);
		s.prediction_bytes = prediction_tensor_bytes(file, c);
		s.model = model_memory(c, file.tensor_bytes() - s.prediction_bytes, uint32_t(a.ubatch));
		if (a.draft == "mtp") s.model = with_prediction(s.model, file, c, read_prediction(file, c));
		if (small) s.model = with_draft_file(s.model, Gguf::open(draft_file), c);
		if (!a.loras.empty()) s.model.lora_bytes = lora_bytes(open_loras(parse_loras(lora_text(a.loras)), file, c), c);
		if (!a.vision.mmproj.empty()) {
			const Gguf encoder = Gguf::open(a.vision.mmproj);
			s.model.vision_bytes = encoder.tensor_bytes();
			s.model.image_bytes = encoding_bytes(read_encoders(encoder, c, a.vision.rows()));
		}
		const FitGoal goal{a.kv == "all" ? std::vector<KvPolicy>() : parse_policies(a.kv), uint32_t(a.ctx)};
		layer_bytes = fit_bytes(file, c, goal) / std::max(n_layers, 1u);
	}
	s.requested = a.ctx > 0;
	s.bus = a.bus, s.bandwidth = a.bandwidth;
	if (s.requested) s.n_tokens = uint64_t(a.ctx);
	find_memory(a, n_layers, layer_bytes, s);
	s.room.free_bytes -= std::min(s.model.beside_bytes(), s.room.free_bytes); // before weights, as a run does
	return s;
}

// Places weights so that the context fits under a policy; without -c, the context that a run would make room for.
WeightPlan placed(const PlanArgs& a, const PlanSubject& s, const KvPolicy& p) {
	const Gguf file = model_file(a);
	const FitGoal goal{{p}, s.requested ? uint32_t(s.n_tokens) : 0, 0, uint32_t(a.ubatch), s.bus, s.bandwidth};
	return place_weights(file, read_config(file), device_row_bytes, weight_options(a.weights), goal, s.room);
}

// The subject with its weights placed for a policy.
PlanSubject divided(const PlanArgs& a, PlanSubject s, const KvPolicy& p) {
	if (a.model.empty() || s.where.empty()) return s;
	WeightPlan w = placed(a, s, p);
	if (!w.host_bytes()) return s;
	s.model.weight_bytes = w.device_bytes();
	s.model.fixed_bytes += w.ring().bytes();
	s.weights = std::move(w);
	return s;
}

// Where auto finds nothing that fits, that is plan's answer, and no device has failed.
[[noreturn]] void fail_fit(std::string why) {
	constexpr std::string_view of_run = "raise --kv-budget";
	if (const size_t at = why.find(of_run); at != why.npos) why.replace(at, of_run.size(), "take more memory");
	fail(Code::Context, "{}", why);
}

// Plans of the policies. With --kv all, policies that this shape cannot use are added to `refused` with the reason.
std::vector<Planned> plans_of(const PlanArgs& a, const PlanSubject& s, std::vector<std::string>& refused) {
	const bool all = a.kv == "all";
	std::vector<Planned> plans;
	std::set<std::string> seen; // a policy that is named twice has one row
	for (const KvPolicy& p : all ? every_policy(a, s) : parse_policies(a.kv)) try {
			if (!seen.insert(p.text).second) continue;
			PlanSubject own = divided(a, s, p);
			const Choice choice = chosen(a, own, p);
			if (!all && !choice.why.empty()) say_stats(fmt::format("{}: {}", one_line(p.text), one_line(choice.why)));
			const KvPolicy &policy = choice.policy, f16 = parse_policy("fp16");
			if (own.weights && policy.text != f16.text) own.trade = trade_text(policy, *own.weights, placed(a, s, f16));
			const KvPlan plan =
			    s.layers ? plan_of_model(*s.layers, policy, s.n_tokens) : make_device_plan(policy, s.shape);
			plans.push_back({plan, verdict_of(plan, own), own, p.text, is_choice(p) ? choice.kld : -1});
		} catch (const Error& e) {
			if (!all && e.code == Code::OutOfMemory) fail_fit(e.what());
			if (!all) throw;
			refused.push_back(e.what());
		}
	return plans;
}

void run_plan(const PlanArgs& a) {
	const PlanSubject s = subject_of(a);
	std::vector<std::string> refused;
	const std::vector<Planned> plans = plans_of(a, s, refused);
	const bool one = plans.size() == 1 && a.kv != "all";
	if (a.json) {
		Json all = Json::array();
		for (const Planned& p : plans) all.push_back(plan_json(p, p.subject));
		print_json(one ? all[0] : all);
	} else if (one) {
		print_plan(plans[0], plans[0].subject);
	} else {
		print_ranking(plans, s);
		for (const std::string& r : refused) write_stdout(fmt::format("not for this model: {}\n", one_line(r)));
	}
	const bool fits = std::ranges::any_of(plans, [](const Planned& p) { return p.verdict.fits; });
	if (s.requested && !s.where.empty() && !fits) throw Exit{kDoesNotFit};
}

Section policies_section() {
	Section out{"Policies", "A policy decides which tokens are kept, at what precision, and where.", {}};
	for (const KvPolicy& p : all_policies())
		out.entries.push_back({p.name, fmt::format("{} [{}]", p.summary, p.source)});
	return out;
}
Section options_section() {
	Section out{"Policy options", "They follow the name: kivi2,group=64,recent_keep=64.", {}};
	for (const auto& [key, meaning] : policy_options()) out.entries.push_back({key, meaning});
	return out;
}

} // namespace

void add_plan(Command& root) {
	auto a = std::make_shared<PlanArgs>();
	Command& c = add_command(root, "plan", "Tells whether a context fits, and what each KV cache policy stores.");
	c.examples = {{"kvrun plan model.gguf --kv kivi2 -c 128k", "does a context of 131072 tokens fit? exit code 6: no"},
	              {"kvrun plan model.gguf --kv all --memory 8G", "rank all policies for 8 GiB of free device memory"},
	              {"kvrun plan synth:qwen3-30b-a3b:q4_k -c 16k --memory 8G --bus 12G/s --bandwidth 272G/s",
	               "which weights lie in host memory, and what that costs"},
	              {"kvrun plan --shape 32x8x128 --kv kivi2,group=64", "the account of one policy, without a model"}};
	add_cache_policy(c, a->kv, kPolicies, "plan this policy in detail, or rank several; all: every one [fp16]",
	                 kOtherGroup);
	add_model(c, a->model, kOtherGroup, &a->vision)->help =
	    "plan for this .gguf file, or name of kvrun list; only its header is read";
	add_text(c, "--shape", a->shape, "LxHxD", "plan for this many layers, KV heads and channels per head, as 32x8x128");
	add_tokens(c, "-c,--ctx-size", a->ctx, 0, kMaxContext,
	           "judge this many tokens, given as one prompt; 0: the trained context, or 4096 for a shape [0]");
	add_text(
	    c, "--device,-dev", a->device, "NAME",
	    "plan for what this device has free: index or part of its name; several, as 0,1, divide the layers [best]");
	add_split(c, a->split);
	add_bytes(c, "--memory", a->memory,
	          "plan for this much free device memory, weights included, instead of a device's");
	add_tokens(c, "--ubatch-size,-ub", a->ubatch, 1, kMaxUbatch,
	           "prompt tokens that go through a layer at a time [512]");
	add_rate(c, "--bus", a->bus,
	         "plan for a card that reads host memory at this rate, like 12G/s, and put there what does not fit");
	add_rate(c, "--bandwidth", a->bandwidth, "rate of the card's own memory, for the estimate of tokens per second");
	add_weight_options(c, a->weights);
	add_text(
	    c, "--draft", a->draft, "mtp|lookup|FILE",
	    "count what --draft loads: the prediction layer (mtp), or a file made for the model (EAGLE-3, DFlash, DSpark, "
	    "an assistant), and a cache in f16 of its own");
	add_lora(c, a->loras, kOtherGroup);
	add_mmproj(c, a->vision, kOtherGroup);
	add_flag(c, "--json", a->json, "print JSON: an object, or an array of them for several policies");
	add_says(c);
	add_llama_options(c);
	c.sections = {
	    {"Verdict",
	     "The first line says whether the request fits. Memory is that of weights, activations, a prompt's scratch "
	     "memory, a reserve and the "
	     "cache. Without -c a context is never longer than the model was trained for; with it, a note says where it "
	     "is. "
	     "A policy that evicts holds only the tokens it keeps. With -c the exit code is 6 if no policy fits."},
	    {"Chosen policies",
	     "auto takes the policy that loses least among those whose cache of -c tokens fits: f16, 8 bits, or each "
	     "layer's keys and values as codebooks or uniform codes of 1 to 8 bits. Without -c, where the trained context "
	     "fits under none, it is for the longest context that fits. tuned:BITS spreads that many bits per "
	     "element, parameters included. Both go by what 'kvrun tune' measured of the model; where it did not, they "
	     "leave uniform codes of 1 to 4 bits out. Neither evicts. Where f16 would move weights to host memory, auto "
	     "weighs bits of the cache against weights on the device: the expected time of a token, by --bus and "
	     "--bandwidth, and the expected loss, of which 0.01 nats count as 10 % of the time."},
	    policies_section(),
	    options_section(),
	    json_section(
	        {{"policy, source, shape", "shape {n_layers, n_kv_heads, head_dim}; with latent attention also rope_dim"},
	         {"tokens, fits, verdict", "of the request; fits is null where no memory is known"},
	         {"evicts, tokens_kept", "whether tokens are dropped for good, and how many of the request remain"},
	         {"measured",
	          "{model, on, policy, kld, half}: KL divergence under this policy on another model, with half of its "
	          "95 % interval; absent where it was not measured with these options"},
	         {"stored_bits_per_element", "everything counted"},
	         {"code_bits_per_element", "codes alone, f16 window apart"},
	         {"ratio, bytes, most_bytes, f16_bytes",
	          "16 / stored bits; of the cache behind one prompt; at most, while tokens come one by one; of a plain f16 "
	          "cache"},
	         {"parts, bits_per_element", "{f16, codes, k_params, v_params, slack, tables, live, fetch, states, index}"},
	         {"token_sets, pages", "number of token sets; pages {recent, salient, regular: {tokens, fill}}"},
	         {"layers", "[{layer, k_codes_of, v_codes_of, recent, salient, regular: {k, v: {bits, scale, group, eta, "
	                    "param_bits, rotate, mean, prescale}, page_bytes, block_bytes}}]"},
	         {"memory",
	          "{device, total_bytes, weight_bytes, activation_bytes, window_bytes, state_bytes, prompt_bytes, "
	          "reserve_bytes, bytes (left "
	          "for the cache), tokens_that_fit; lora_bytes, mmproj_bytes, image_bytes of adapters, the encoder of "
	          "images or "
	          "sounds, and what it takes while it encodes the largest; with --draft draft_bytes (layers that draft) "
	          "and draft_cache_bytes}; else, where the file has a prediction layer, prediction_bytes, which are not "
	          "counted"},
	         {"weights", "where some lie in host memory: {bytes, device_bytes, host_bytes, host (of what), ring_bytes "
	                     "(device memory through which prompts copy them, among activation_bytes), "
	                     "device_bytes_per_token, bus_bytes_per_token, tokens_per_s (an estimate; null: no rate is "
	                     "known), trade (against f16)}"}})};
	c.run = [a] { run_plan(*a); };
}

} // namespace kvrun
