// kvrun plan: what a KV policy stores for a model or a shape, layer by layer and bit by bit, and what fits.
#include "engine/core/utf8.h"
#include "engine/kv/plan.h"
#include "models/config.h"
#include "tools/args_engine.h"
#include "tools/commands.h"
#include "tools/env.h"
#include "tools/output.h"
#include "tools/terminal.h"
#include <charconv>
#include <map>

namespace kvrun {
namespace {

struct PlanArgs {
	std::string kv = "fp16", model, shape, device;
	int64_t ctx = 0;     // tokens; 0: the trained context of the model, 4096 for a shape
	uint64_t memory = 0; // bytes for weights and cache; 0: what the device has free
	bool json = false;
};
struct Memory {        // what the cache may take
	std::string where; // "8.0 GiB given", a device's name; empty: unknown
	uint64_t bytes = 0;
};
struct Subject {      // what the policies are planned for
	std::string name; // of the model, or the shape as typed
	KvShape shape;
	uint64_t n_tokens = 0, weight_bytes = 0;
	Memory memory;
};
struct Part {        // one row of the account
	const char* key; // in JSON
	const char* what;
	size_t KvBytes::*bytes;
};
constexpr Part kParts[] = {
    {"f16", "f16 tokens", &KvBytes::f16},
    {"codes", "codes", &KvBytes::codes},
    {"k_params", "K parameters", &KvBytes::k_params},
    {"v_params", "V parameters", &KvBytes::v_params},
    {"slack", "empty slots of pages", &KvBytes::slack},
    {"tables", "page tables", &KvBytes::tables},
    {"live", "live masks", &KvBytes::live},
};

constexpr const char* kJsonKeys =
    "JSON: an object; an array of them for several policies. policy, source, shape {n_layers, n_kv_heads, head_dim},\n"
    "  tokens, stored_bits_per_element (everything counted), code_bits_per_element (codes alone, f16 window apart),\n"
    "  ratio (16 / stored bits), bytes, f16_bytes (of a plain f16 cache), parts and bits_per_element {f16, codes,\n"
    "  k_params, v_params, slack, tables, live}, token_sets, pages {recent, salient, regular: {tokens, fill}},\n"
    "  layers [{layer, k_codes_of, v_codes_of, recent, salient, regular: {k, v: {bits, scale, group, norm, eta},\n"
    "  page_bytes, block_bytes}}], memory {device, bytes, tokens_that_fit}. Keys stay; new ones may come.";

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

// Without an open device: what it would have free, and what the weights leave of that.
Memory memory_of(const PlanArgs& a, uint64_t weight_bytes) {
	Memory m;
	if (a.memory) {
		m = {human_bytes(double(a.memory)) + " given", a.memory};
	} else {
		for (const DeviceReport& d : list_devices(options_from_environment())) {
			const bool wanted =
			    a.device.empty() || d.info.name.find(a.device) != std::string::npos || a.device == d.backend;
			if (!d.refused.empty() || !wanted) continue;
			m = {d.info.name, d.info.free_bytes - d.info.free_bytes / 10}; // a tenth for activations and the driver
			break;
		}
		if (m.where.empty() && !a.device.empty())
			fail(Code::Device, "no usable device '{}'; kvrun devices lists them", a.device);
	}
	m.bytes -= std::min(m.bytes, weight_bytes);
	return m;
}

Subject subject_of(const PlanArgs& a) {
	Subject s;
	if (a.model.empty() == a.shape.empty())
		fail(Code::Invalid, "give one of -m FILE and --shape LAYERSxKVHEADSxHEADDIM");
	if (!a.shape.empty()) {
		s.name = a.shape;
		s.shape = read_shape(a.shape);
		s.n_tokens = a.ctx ? uint64_t(a.ctx) : 4096;
	} else {
		const Gguf file = Gguf::open(a.model);
		const Config c = read_config(file);
		s.name = c.name.empty() ? a.model : c.name;
		s.shape = {c.n_layers, c.n_kv_heads, c.head_dim};
		s.n_tokens = a.ctx ? uint64_t(a.ctx) : std::max(c.max_seq, 1u);
		s.weight_bytes = file.tensor_bytes();
	}
	s.memory = memory_of(a, s.weight_bytes);
	return s;
}

const char* tier_name(int t) {
	constexpr const char* names[kTiers] = {"recent", "salient", "regular"};
	return names[t];
}
const char* fill_name(Fill f) {
	constexpr const char* names[] = {"none", "append", "group", "block"};
	return names[int(f)];
}

Json quant_json(const Quant& q) {
	Json j = {{"bits", q.bits}};
	if (q.bits == 0 || q.bits == 16) return j;
	j["scale"] = q.scale == Scale::PerChannel ? "channel" : "token";
	if (q.group == kGroupAll)
		j["group"] = "all";
	else
		j["group"] = q.group;
	j["norm"] = q.norm == Norm::SqrtMax ? "sqrtmax" : q.norm == Norm::Balance ? "balance" : "none";
	j["eta"] = q.relax;
	return j;
}

Json layer_json(const KvPlan& plan, uint32_t l) {
	const LayerPlan& L = plan.layers[l];
	Json j = {{"layer", l}, {"k_codes_of", L.k_codes_of}, {"v_codes_of", L.v_codes_of}};
	for (int t = 0; t < kTiers; ++t) {
		const TierPlan& T = L.tier[t];
		if (T.page_format == 0xffff) continue;
		Json& tier = j[tier_name(t)];
		tier = {{"k", quant_json(T.fmt.k)},
		        {"v", quant_json(T.fmt.v)},
		        {"page_bytes", plan.formats[T.page_format].bytes()}};
		if (T.block_format != 0xffff) tier["block_bytes"] = plan.formats[T.block_format].bytes();
	}
	return j;
}

Json to_json(const KvPlan& plan, const Subject& s) {
	const KvBytes b = bytes_at(plan, s.n_tokens);
	const double elements = double(plan.f16_bytes(s.n_tokens)) / 2;
	const double stored = stored_bits(plan, s.n_tokens);
	Json j = {
	    {"policy", plan.policy.text},
	    {"source", plan.policy.source},
	    {"shape", {{"n_layers", s.shape.n_layers}, {"n_kv_heads", s.shape.n_kv_heads}, {"head_dim", s.shape.head_dim}}},
	    {"tokens", s.n_tokens},
	    {"stored_bits_per_element", stored},
	    {"code_bits_per_element", code_bits(plan)},
	    {"ratio", 16 / stored},
	    {"bytes", b.total()},
	    {"f16_bytes", plan.f16_bytes(s.n_tokens)}};
	for (const Part& p : kParts) {
		j["parts"][p.key] = b.*p.bytes;
		j["bits_per_element"][p.key] = double(b.*p.bytes) * 8 / elements;
	}
	j["token_sets"] = uint64_t(plan.n_groups) * plan.n_heads;
	for (int t = 0; t < kTiers; ++t)
		if (plan.fill[t] != Fill::None)
			j["pages"][tier_name(t)] = {{"tokens", plan.page[t]}, {"fill", fill_name(plan.fill[t])}};
	for (uint32_t l = 0; l < plan.shape.n_layers; ++l) j["layers"].push_back(layer_json(plan, l));
	if (!s.memory.where.empty())
		j["memory"] = {{"device", s.memory.where},
		               {"bytes", s.memory.bytes},
		               {"tokens_that_fit", tokens_that_fit(plan, s.memory.bytes, 1u << 24)}};
	return j;
}

// ---- for people

// `below`: how many layers further down the codes are; 0: in this layer.
std::string quant_text(const Quant& q, uint32_t below) {
	if (q.bits == 16) return "f16";
	std::string s = fmt::format("{} bit", q.bits);
	if (below == 1) s += " of the layer below";
	if (below > 1) s += fmt::format(" of the layer {} below", below);
	if (q.scale == Scale::PerChannel && q.group == kGroupAll)
		s += ", a scale per channel";
	else if (q.scale == Scale::PerChannel)
		s += fmt::format(", a scale per channel and {} tokens", q.group);
	else
		s += fmt::format(", a scale per token and {} channels", q.group);
	if (q.norm == Norm::SqrtMax) s += ", channel factors";
	if (q.norm == Norm::Balance) s += ", balanced";
	if (q.relax > 0) s += fmt::format(", eta {:.3g}", q.relax);
	return s;
}

std::string layer_text(const KvPlan& plan, uint32_t l) {
	const LayerPlan& L = plan.layers[l];
	std::string s;
	auto tier = [&](const char* name, const std::string& k, const std::string& v) {
		s += fmt::format("    {:<8} K {}\n{:13}V {}\n", name, k, "", v);
	};
	if (plan.keeps_all) tier("all", "f16", "f16");
	if (plan.ranked() && plan.salient_stays) tier("salient", "f16", "f16");
	for (Tier t : {Tier::Salient, Tier::Regular}) {
		const TierPlan& T = L.tier[int(t)];
		if (T.page_format == 0xffff) continue;
		const bool may_share = t == Tier::Regular;
		tier(tier_name(int(t)), quant_text(T.fmt.k, may_share ? l - L.k_codes_of : 0),
		     quant_text(T.fmt.v, may_share ? l - L.v_codes_of : 0));
		const double page_bytes = double(plan.formats[T.page_format].bytes());
		s += fmt::format("{:13}page of {} tokens: {}", "", plan.page[int(t)], human_bytes(page_bytes));
		if (T.block_format != 0xffff)
			s += fmt::format("; per compression {}", human_bytes(double(plan.formats[T.block_format].bytes())));
		s += "\n";
	}
	if (!plan.keeps_all && plan.fill[int(Tier::Regular)] == Fill::None) s += "    regular  evicted\n";
	return s;
}

// "0-15, 17, 19": layers in runs.
std::string ranges(const std::vector<uint32_t>& layers) {
	std::string out;
	for (size_t i = 0; i < layers.size();) {
		size_t j = i;
		while (j + 1 < layers.size() && layers[j + 1] == layers[j] + 1) ++j;
		out += fmt::format("{}{}", out.empty() ? "" : ", ", layers[i]);
		if (j > i) out += fmt::format("-{}", layers[j]);
		i = j + 1;
	}
	return out;
}

void print(const KvPlan& plan, const Subject& s) {
	const KvBytes b = bytes_at(plan, s.n_tokens);
	const Select& select = plan.policy.select;
	const double elements = double(plan.f16_bytes(s.n_tokens)) / 2, stored = stored_bits(plan, s.n_tokens);
	std::string out = fmt::format("{} [{}]\n{}: {} layers x {} kv heads x head_dim {}, {} tokens\n\n",
	                              one_line(plan.policy.text), plan.policy.source, one_line(s.name), s.shape.n_layers,
	                              s.shape.n_kv_heads, s.shape.head_dim, s.n_tokens);
	out += fmt::format("  {:<22}{:>12}{:>16}\n", "", "bytes", "bits/element");
	for (const Part& p : kParts)
		if (b.*p.bytes)
			out += fmt::format("  {:<22}{:>12}{:>16.3f}\n", p.what, human_bytes(double(b.*p.bytes)),
			                   double(b.*p.bytes) * 8 / elements);
	out += fmt::format("  {:<22}{:>12}{:>16.3f}\n", "stored", human_bytes(double(b.total())), stored);
	out += fmt::format("  {:<22}{:>12}{:>16.3f}\n", "plain f16", human_bytes(double(plan.f16_bytes(s.n_tokens))), 16.0);
	out += fmt::format("  {:.2f} times smaller than f16; codes alone {:.3g} bits per element\n\n", 16 / stored,
	                   code_bits(plan));
	if (!plan.keeps_all) {
		out += fmt::format("  f16 window: at most {} tokens{}; the oldest {} are judged together\n",
		                   select.recent_keep + select.flush,
		                   select.sinks ? fmt::format(" and the first {}", select.sinks) : "", select.flush);
		out += fmt::format("  token sets: {}\n", plan.n_heads > 1    ? "one per layer and kv head"
		                                         : plan.n_groups > 1 ? "one per layer"
		                                                             : "one for all layers");
	}
	std::vector<std::pair<std::string, std::vector<uint32_t>>> alike; // layers by what they store
	std::map<std::string, size_t> index;
	for (uint32_t l = 0; l < plan.shape.n_layers; ++l) {
		const std::string text = layer_text(plan, l);
		const auto [at, fresh] = index.emplace(text, alike.size());
		if (fresh) alike.push_back({text, {}});
		alike[at->second].second.push_back(l);
	}
	for (const auto& [text, layers] : alike) out += fmt::format("  layers {}:\n{}", ranges(layers), text);
	if (!s.memory.where.empty())
		out += fmt::format("\n  {}: {} for the cache, {} tokens fit\n", one_line(s.memory.where),
		                   human_bytes(double(s.memory.bytes)), tokens_that_fit(plan, s.memory.bytes, 1u << 24));
	write_stdout(out);
}

void run_plan(const PlanArgs& a) {
	const std::vector<KvPolicy> policies = parse_policies(a.kv);
	const Subject s = subject_of(a);
	Json all = Json::array();
	for (size_t i = 0; i < policies.size(); ++i) {
		const KvPlan plan = make_plan(policies[i], s.shape);
		if (a.json)
			all.push_back(to_json(plan, s));
		else if (i)
			write_stdout("\n");
		if (!a.json) print(plan, s);
	}
	if (a.json) print_json(policies.size() == 1 ? all[0] : all);
}

} // namespace

void add_plan(CLI::App& app) {
	auto a = std::make_shared<PlanArgs>();
	CLI::App* c =
	    app.add_subcommand("plan", "Shows what a KV cache policy stores, where each bit goes, and what fits.");
	add_text(*c, "--kv", a->kv, "POLICY", "plan this policy, or several: name,key=value,... (see below) [fp16]");
	add_text(*c, "-m,--model", a->model, "FILE", "for the model in this .gguf file (only its header is read)");
	add_text(*c, "--shape", a->shape, "LxHxD", "for this many layers, kv heads and channels per head, as 32x8x128");
	add_integer(*c, "-c,--ctx-size", a->ctx, 0, 1 << 24,
	            "tokens in the cache, given as one prompt; 0: the trained context, or 4096 for a shape [0]");
	add_text(*c, "--device", a->device, "NAME", "say what fits this device: part of its name, or cpu [best]");
	add_bytes(*c, "--memory", a->memory, "say what fits this much memory, weights included, instead of a device's");
	c->add_flag("--json", a->json, "write JSON");
	c->footer(std::string(kJsonKeys));
	c->callback([a] { run_plan(*a); });
}

} // namespace kvrun
