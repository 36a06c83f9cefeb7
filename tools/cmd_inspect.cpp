// kvrun inspect: shows the content of a model file, and whether kvrun can run it.
#include "engine/core/block_quant.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/encoder_file.h"
#include "models/finite.h"
#include "models/model.h"
#include "models/prediction.h"
#include "models/text_encoder.h"
#include "tools/args_engine.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/shortest.h"
#include "tools/terminal.h"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvrun {
namespace {

struct InspectArgs {
	std::string model;
	bool json = false, check = false, tensors = false, chat_template = false;
};

template <class T> T load(std::span<const std::byte> b) {
	T v;
	std::memcpy(&v, b.data(), sizeof v);
	return v;
}

Json value_of(const GgufEntry& e) {
	switch (e.type) {
	case GgufType::U8: return load<uint8_t>(e.bytes);
	case GgufType::I8: return load<int8_t>(e.bytes);
	case GgufType::U16: return load<uint16_t>(e.bytes);
	case GgufType::I16: return load<int16_t>(e.bytes);
	case GgufType::U32: return load<uint32_t>(e.bytes);
	case GgufType::I32: return load<int32_t>(e.bytes);
	case GgufType::F32: return shortest(load<float>(e.bytes));
	case GgufType::Bool: return e.bytes[0] != std::byte(0);
	case GgufType::String: return std::string(reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size());
	case GgufType::U64: return load<uint64_t>(e.bytes);
	case GgufType::I64: return load<int64_t>(e.bytes);
	case GgufType::F64: return load<double>(e.bytes);
	case GgufType::Array: return fmt::format("{} x {}", e.count, gguf_type_name(e.element));
	}
	return nullptr;
}

// Sizes of a part of layers, in the first layer that has it, and the number of those layers; null: no layer has it.
Json part_json(const Config& c, auto&& has, auto&& sizes) {
	const auto first = std::ranges::find_if(c.layers, has);
	if (first == c.layers.end()) return nullptr;
	Json out = {{"layers", std::ranges::count_if(c.layers, has)}};
	out.update(sizes(*first));
	return out;
}

Json experts_json(const Config& c) {
	return part_json(
	    c, [](const Layer& l) { return l.experts.n != 0; },
	    [](const Layer& l) -> Json {
		    const Experts& e = l.experts;
		    return {{"experts", e.n},
		            {"used", e.used},
		            {"hidden_dim", e.hidden_dim},
		            {"latent_dim", e.latent_dim},
		            {"shared_dim", e.shared_dim},
		            {"gating", e.gating == Gating::Sigmoid        ? "sigmoid"
		                       : e.gating == Gating::SqrtSoftplus ? "sqrtsoftplus"
		                                                          : "softmax"},
		            {"normalised", e.normalise},
		            {"scale", shortest(e.scale)},
		            {"groups", e.n_groups},
		            {"used_groups", e.used_groups}};
	    });
}

Json latents_json(const Config& c) {
	return part_json(
	    c, [](const Layer& l) { return l.latent.rank != 0; },
	    [](const Layer& l) -> Json {
		    const Latent& t = l.latent;
		    return {{"rank", t.rank},
		            {"rotated_key", t.no_rope ? 0 : t.rope_dim},
		            {"query_rank", t.q_rank},
		            {"v_dim", t.v_dim}};
	    });
}

Json states_json(const Config& c) {
	return part_json(
	    c, [](const Layer& l) { return l.recurrent.n_heads != 0; },
	    [](const Layer& l) -> Json {
		    const Recurrent& r = l.recurrent;
		    return {{"heads", r.n_heads},
		            {"k_dim", r.k_dim},
		            {"v_dim", r.v_dim},
		            {"convolution", r.taps},
		            {"beside_attention", r.beside}};
	    });
}

Json indexer_json(const Config& c) {
	const Indexer& x = c.indexer;
	if (!x.block) return nullptr;
	uint32_t own = 0;
	for (uint32_t l = 0; l < c.n_layers; ++l) own += has_indexer(c, l);
	const uint32_t block = x.pool ? x.pool : x.block, tokens = (x.most + x.local) * block;
	return {{"layers", own}, {"heads", x.n_heads}, {"dim", x.dim}, {"block", block}, {"tokens", tokens}};
}

Json streams_json(const Config& c) {
	const Streams& s = c.streams;
	if (s.n < 2) return nullptr;
	constexpr const char* kinds[] = {"none", "altup", "gated", "manifold", "attended"};
	const char* kind = kinds[size_t(s.kind)];
	return {{"streams", s.n}, {"kind", kind}, {"rank", s.rank}, {"rounds", s.rounds}};
}

Json config_json(const Config& c) {
	const Rope& r = c.ropes[0];
	Json rope = {{"rotates", r.rotates},
	             {"rotary_dim", r.dim},
	             {"theta", shortest(r.theta)},
	             {"pairs", r.neox ? "halves" : "neighbours"},
	             {"scaling", rope_scaling_name(r.scaling)},
	             {"factor", shortest(r.factor)},
	             {"original_context", r.original_ctx},
	             {"frequency_factors", !r.freqs.empty() || !r.long_freqs.empty()},
	             {"attention_scale", shortest(rope_attention_scale(r))}};
	const auto windowed = std::ranges::find_if(c.layers, [](const Layer& l) { return bool(l.window); });
	return {{"dim", c.dim},
	        {"hidden_dim", c.hidden_dim},
	        {"n_layers", c.n_layers},
	        {"rounds", c.rounds}, // times that each layer of the file runs
	        {"n_heads", c.n_heads},
	        {"n_kv_heads", c.n_kv_heads},
	        {"head_dim", c.head_dim},
	        {"vocab", c.vocab},
	        {"context", c.max_seq},
	        {"positions", c.text_input.positions},
	        {"sliding_window", windowed == c.layers.end() ? 0 : windowed->window.tokens},
	        {"norm_eps", shortest(c.norm_eps)},
	        {"tied_embedding", c.tied_embedding},
	        {"qkv_bias", c.layers[0].qkv_bias},
	        {"qk_norm", c.layers[0].qk_norm != QkNorm::None},
	        {"rope", rope},
	        {"experts", experts_json(c)},
	        {"latents", latents_json(c)},
	        {"states", states_json(c)},
	        {"indexer", indexer_json(c)},
	        {"streams", streams_json(c)},
	        {"encodes", c.encodes},
	        {"vector_dim", vector_dim(c)},
	        {"scores", c.text_head.labels},
	        {"kv_bytes_per_token", c.encodes ? 0 : kv_f16_bytes(c)}}; // K and V, two bytes each
}

Json tokenizer_json(const Tokenizer& t) {
	auto token = [&](std::optional<uint32_t> id) {
		return id ? Json{{"id", *id}, {"text", std::string(t.text(*id))}} : Json(nullptr);
	};
	Json ends = Json::array();
	for (uint32_t id : t.end_ids()) ends.push_back(token(id));
	return {{"kind", t.model()},        {"pre", std::string(t.pre())},
	        {"tokens", t.vocab()},      {"bos", token(t.bos())},
	        {"eos", token(t.eos())},    {"ends", ends},
	        {"adds_bos", t.adds_bos()}, {"chat_template", std::string(t.chat_template())}};
}

bool is_encoder_file(const Gguf& g) { return g.text("general.architecture", "") == "clip"; }

// What its encoders read, by the names of their projectors.
Json encoders_json(const Gguf& g) {
	Json out = Json::object();
	if (has_audio(g)) out["audio"] = audio_projector_of(g).name;
	if (out.empty() || has_vision(g)) out["images"] = projector_of(g).name;
	return out;
}

// Describes a file; if kvrun cannot run it, as far as it can be read.
Json describe(const Gguf& g) {
	std::string refused;
	Json config, tokenizer, encoders;
	try {
		if (is_encoder_file(g)) {
			encoders = encoders_json(g);
		} else {
			const Tokenizer t(g);
			tokenizer = tokenizer_json(t);
			const Config c = read_config(g);
			config = config_json(c);
			config["prediction_layers"] = prediction_layers(g, c); // which --draft mtp uses
			check_model(g, c, t);
		}
	} catch (const Error& e) { refused = e.what(); }
	Json tensors = Json::array(), types = Json::object(), metadata = Json::object();
	uint64_t elements = 0;
	for (const GgufTensor& t : g.tensors()) {
		Json shape = Json::array();
		for (uint32_t d = t.n_dims; d-- > 0;) shape.push_back(t.shape[d]);
		const char* type = dtype_info(t.type).name;
		tensors.push_back({{"name", std::string(t.name)}, {"type", type}, {"shape", shape}, {"bytes", t.bytes}});
		Json& sum = types[type];
		if (sum.is_null()) sum = {{"tensors", 0}, {"bytes", 0}};
		sum["tensors"] = sum["tensors"].get<uint64_t>() + 1;
		sum["bytes"] = sum["bytes"].get<uint64_t>() + t.bytes;
		elements += t.rows() * t.cols();
	}
	// appended without a lookup, which would be quadratic: keys are distinct
	auto& members = metadata.get_ref<Json::object_t&>();
	members.reserve(g.entries().size());
	for (const GgufEntry& e : g.entries()) members.emplace_back(std::string(e.key), value_of(e));
	const GgufEntry* name = g.find("general.name");
	const GgufEntry* arch = g.find("general.architecture");
	return {{"file", g.name()},
	        {"bytes", g.file_bytes()},
	        {"parts", g.n_parts()},
	        {"gguf_version", g.version()},
	        {"name", name ? value_of(*name) : Json(nullptr)},
	        {"architecture", arch ? value_of(*arch) : Json(nullptr)},
	        {"parameters", elements},
	        {"runs", refused.empty()},
	        {"refused", refused.empty() ? Json(nullptr) : Json(refused)},
	        {"config", config},
	        {"tokenizer", tokenizer},
	        {"encoders", encoders},
	        {"types", types},
	        {"tensors", tensors},
	        {"metadata", metadata}};
}

// A JSON value on one line, strings without quotes.
std::string shown(const Json& v, size_t most = 100) {
	const std::string s = v.is_string() ? v.get<std::string>() : json_line(v);
	return one_line(s, most);
}

std::string fields(const Json& object) {
	std::string out;
	for (const auto& [key, value] : object.items())
		if (!value.is_object() && !value.is_null())
			out += fmt::format("{}{} {}", out.empty() ? "" : ", ", key, shown(value));
	return out;
}

std::string token_text(const Json& t) {
	return t.is_null() ? "none" : fmt::format("{} {}", t["id"].get<uint32_t>(), shown(t["text"]));
}

std::string as_text(const Json& d, bool tensors, bool checked) {
	std::string out;
	auto line = [&](const char* what, const std::string& text) { out += fmt::format("{:<14}{}\n", what, text); };
	line("file", fmt::format("{}, {}, GGUF v{}{}", shown(d["file"]), human_bytes(d["bytes"].get<double>()),
	                         d["gguf_version"].get<int>(),
	                         d["parts"].get<int>() > 1 ? fmt::format(", {} parts", d["parts"].get<int>()) : ""));
	line("name", shown(d["name"]));
	line("architecture", shown(d["architecture"]));
	line("parameters", fmt::format("{:.1f} M", d["parameters"].get<double>() / 1e6));
	if (const Json& c = d["config"]; !c.is_null()) {
		line("config", fields(c));
		line("rope", fields(c["rope"]));
		for (const char* part : {"experts", "latents", "states", "indexer", "streams"})
			if (!c[part].is_null()) line(part, fields(c[part]));
	}
	if (const Json& t = d["tokenizer"]; !t.is_null()) {
		std::string ends;
		for (const Json& e : t["ends"]) ends += fmt::format("{}{}", ends.empty() ? "" : ", ", token_text(e));
		line("tokenizer",
		     fmt::format("{}{}{}, {} tokens, bos {}{}, eos {}, ends an answer: {}; {}", shown(t["kind"]),
		                 t["pre"].get<std::string>().empty() ? "" : " ", shown(t["pre"]), t["tokens"].get<uint64_t>(),
		                 token_text(t["bos"]), t["adds_bos"].get<bool>() ? " (added)" : "", token_text(t["eos"]),
		                 ends.empty() ? "none" : ends,
		                 t["chat_template"].get<std::string>().empty() ? "no chat template" : "has a chat template"));
	}
	for (const auto& [type, sum] : d["types"].items())
		line("type", fmt::format("{:<5} {} tensors, {}", type, sum["tensors"].get<uint64_t>(),
		                         human_bytes(sum["bytes"].get<double>())));
	if (!d["encoders"].is_null()) line("encodes", fields(d["encoders"]));
	if (checked) line("weights", "all are read and finite");
	const char* yes = d["architecture"] == Json("clip") ? "yes, beside its model: --mmproj" : "yes";
	line("runs", d["runs"].get<bool>() ? yes : fmt::format("no: {}", shown(d["refused"], std::string::npos)));

	out += "\n";
	for (const auto& [key, value] : d["metadata"].items()) out += fmt::format("{} = {}\n", one_line(key), shown(value));
	if (!tensors) return out + fmt::format("\n{} tensors; --tensors lists them\n", d["tensors"].size());

	size_t width = 6;
	for (const Json& t : d["tensors"]) width = std::max(width, shown(t["name"]).size());
	out += fmt::format("\n{:<{}}  {:<5} {:>12}  shape\n", "tensor", width, "type", "bytes");
	for (const Json& t : d["tensors"])
		out += fmt::format("{:<{}}  {:<5} {:>12}  {}\n", shown(t["name"]), width, t["type"].get<std::string>(),
		                   t["bytes"].get<uint64_t>(), shown(t["shape"]));
	return out;
}

// The name of a number that is not finite. A finite one has a scale that is NaN (first_not_finite_of_block()).
const char* special_name(float v) { return !std::isinf(v) ? "nan" : v > 0 ? "inf" : "-inf"; }

// Refuses a file with a weight that is not finite.
void check_values(const Gguf& g) {
	constexpr size_t kPiece = size_t(4) << 20; // bytes read at once
	std::vector<std::byte> bytes;
	uint64_t done = 0, bad_tensors = 0;
	std::string first;
	Progress progress;
	for (const GgufTensor& t : g.tensors()) {
		const auto [name, block, block_bytes] = dtype_info(t.type);
		const size_t step = kPiece / block_bytes * block_bytes;
		std::optional<size_t> bad;
		for (uint64_t at = 0; at < t.bytes && !bad; at += step) {
			bytes.resize(size_t(std::min<uint64_t>(step, t.bytes - at)));
			g.read(t, at, bytes);
			bad = first_not_finite(t.type, bytes);
			if (!bad || bad_tensors++ > 0) continue;
			std::vector<float> values(block);
			dequantise_row(t.type, bytes.data() + *bad / block * block_bytes, values.data(), block);
			const uint64_t element = at / block_bytes * block + *bad;
			first = fmt::format("{} at row {}, column {}: {}", one_line(t.name), element / t.cols(), element % t.cols(),
			                    special_name(values[*bad % block]));
		}
		done += t.bytes;
		progress.show("checking", double(done) / double(g.tensor_bytes()));
	}
	progress.clear();
	if (bad_tensors > 0)
		fail(Code::Format, "{}: {} of {} tensors hold values that are not finite, first {}; download the file again",
		     g.name(), bad_tensors, g.tensors().size(), first);
}

void inspect(const InspectArgs& a) {
	const Gguf g = Gguf::open(a.model);
	const Json d = describe(g);
	if (a.check) {
		if (!d["runs"].get<bool>()) fail(Code::Format, "{}", d["refused"].get<std::string>());
		check_values(g);
	}
	if (a.chat_template) {
		const std::string text = d["tokenizer"].is_null() ? "" : d["tokenizer"]["chat_template"].get<std::string>();
		if (text.empty()) fail(Code::NotFound, "{}: has no chat template", g.name());
		return write_stdout(text.ends_with('\n') ? text : text + "\n");
	}
	if (a.json)
		print_json(d);
	else
		write_stdout(as_text(d, a.tensors, a.check));
}

} // namespace

void add_inspect(Command& root) {
	auto a = std::make_shared<InspectArgs>();
	Command& c = add_command(root, "inspect", "Shows what a model file holds, and whether kvrun runs it.");
	c.examples = {
	    {"kvrun inspect model.gguf", "configuration, tokenizer and metadata"},
	    {"kvrun inspect model.gguf --check", "read every weight; the exit code says whether the file is sound"}};
	Option* model = add_model(c, a->model, kOtherGroup);
	model->required()->help = "a .gguf file (the first part of a split one), or a name of kvrun list";
	add_flag(c, "--tensors", a->tensors, "also list every tensor with type, bytes and shape");
	add_flag(c, "--template", a->chat_template, "print the file's chat template, and nothing else");
	add_flag(c, "--json", a->json, "print one JSON object, tensors included");
	add_flag(c, "--check", a->check,
	         "read all weights first; exit with 3 if one is not finite, or if kvrun cannot run the file");
	c.sections = {
	    json_section({{"file, bytes, parts, gguf_version", "the file, or all parts of a split one"},
	                  {"name, architecture, parameters", "general.name, general.architecture, number of weights"},
	                  {"runs, refused", "whether kvrun runs the model, and why not (else null)"},
	                  {"config, tokenizer", "null where the file has none that kvrun knows"},
	                  {"encoders", "of an mmproj file: audio, images, by the names of their projectors; else null"},
	                  {"types", "tensors and bytes of each type"},
	                  {"tensors", "[{name, type, shape (outermost first), bytes}]"},
	                  {"metadata", "every key of the file; arrays as their length and type"}})};
	c.run = [a] { inspect(*a); };
}

} // namespace kvrun
