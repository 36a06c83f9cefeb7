// Reports of kvrun plan about a policy and a model: verdict, bytes by kind, ranked table; as text and JSON.
#include "tools/plan_report.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "engine/kv_host/counts.h"
#include "tools/hub/names.h"
#include "tools/terminal.h"
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

namespace kvrun {
namespace {

struct SizeRow {     // one row of the table
	const char* key; // in JSON
	const char* what;
	size_t KvBytes::*bytes;
};
constexpr SizeRow kSizeRows[] = {
    {"f16", "f16 tokens", &KvBytes::f16},
    {"codes", "codes", &KvBytes::codes},
    {"k_params", "K parameters", &KvBytes::k_params},
    {"v_params", "V parameters", &KvBytes::v_params},
    {"slack", "empty slots of pages", &KvBytes::slack},
    {"tables", "page tables", &KvBytes::tables},
    {"live", "live masks", &KvBytes::live},
    {"fetch", "fetched tokens, masks", &KvBytes::fetch},
    {"states", "recurrent states", &KvBytes::states},
    {"index", "keys of the indexer", &KvBytes::index},
};

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
	j["scale"] = q.scale == Scale::PerChannel ? "channel" : q.scale == Scale::Codebook ? "codebook" : "token";
	j["param_bits"] = q.param_bits;
	if (q.scale == Scale::Codebook) j["rotate"] = q.rotate, j["mean"] = q.mean;
	if (q.group == kGroupAll)
		j["group"] = "all";
	else
		j["group"] = q.group;
	j["prescale"] = q.prescale == Prescale::SqrtMax ? "sqrtmax" : q.prescale == Prescale::Balance ? "balance" : "none";
	j["eta"] = q.eta;
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

Json memory_json(const PlanSubject& s, const PlanVerdict& v) {
	const MemoryAccount m = memory_account(s.model, s.total_bytes, s.n_tokens);
	Json j = {{"device", s.where},         {"total_bytes", m.total},
	          {"weight_bytes", m.weights}, {"activation_bytes", m.activations},
	          {"window_bytes", m.window},  {"state_bytes", m.states},
	          {"prompt_bytes", m.prompt},  {"reserve_bytes", m.reserve},
	          {"bytes", m.cache},          {"tokens_that_fit", v.capacity.kept}};
	if (m.loras) j["lora_bytes"] = m.loras;
	if (m.vision) j["mmproj_bytes"] = m.vision, j["image_bytes"] = m.image;
	if (m.draft)
		j["draft_bytes"] = m.draft, j["draft_cache_bytes"] = m.draft_cache;
	else if (s.prediction_bytes)
		j["prediction_bytes"] = s.prediction_bytes;
	return j;
}

Json weights_json(const KvPlan& plan, const PlanSubject& s) {
	const WeightPlan& w = *s.weights;
	const double rate = expected_rate(plan, s);
	return {{"bytes", w.bytes()},
	        {"device_bytes", w.device_bytes()},
	        {"host_bytes", w.host_bytes()},
	        {"host", w.host_text()},
	        {"ring_bytes", w.ring().bytes()},
	        {"device_bytes_per_token", w.device_token_bytes()},
	        {"bus_bytes_per_token", w.host_token_bytes()},
	        {"tokens_per_s", rate > 0 ? Json(rate) : Json(nullptr)},
	        {"trade", s.trade}};
}

// ---- text

std::string weights_lines(const KvPlan& plan, const PlanSubject& s) {
	const WeightPlan& w = *s.weights;
	std::string out = fmt::format("\n  {}\n  read for a token: {} of weights on the device, {} over the bus\n",
	                              weights_text(w, s.room.name), human_bytes(double(w.device_token_bytes())),
	                              human_bytes(double(w.host_token_bytes())));
	if (const double rate = expected_rate(plan, s); rate > 0)
		out += fmt::format("  estimate, by bytes and rates alone: {:.1f} tokens/s at {} tokens of context (bus {:.3g} "
		                   "GB/s, device {:.3g} GB/s)\n",
		                   rate, s.n_tokens, s.bus / 1e9, s.bandwidth / 1e9);
	else
		out += "  --bus RATE and --bandwidth RATE give an estimate of tokens/s\n";
	if (!s.trade.empty()) out += "  " + s.trade + "\n";
	return out;
}

// `below`: the codes are stored this many layers further down; 0: in this layer.
std::string quant_text(const Quant& q, uint32_t below) {
	if (q.bits == 16) return "f16";
	std::string s = fmt::format("{} bit", q.bits);
	if (below == 1) s += " of the layer below";
	if (below > 1) s += fmt::format(" of the layer {} below", below);
	if (q.scale == Scale::PerChannel && q.group == kGroupAll)
		s += ", a scale per channel";
	else if (q.scale == Scale::PerChannel)
		s += fmt::format(", a scale per channel and {} tokens", q.group);
	else if (q.scale == Scale::Codebook)
		s += fmt::format(" codebook, a norm of {} bits per token and head{}{}", q.param_bits,
		                 q.rotate ? ", rotated" : "",
		                 q.mean ? fmt::format(", channel means of {} tokens", q.group) : "");
	else
		s += fmt::format(", a scale per token and {} channels", q.group);
	if (q.scale != Scale::Codebook && q.param_bits == 8) s += ", scales and zero points of 8 bits";
	if (q.prescale == Prescale::SqrtMax) s += ", channel factors";
	if (q.prescale == Prescale::Balance) s += ", balanced";
	if (q.eta > 0) s += fmt::format(", eta {:.3g}", q.eta);
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

std::string memory_text(const PlanSubject& s, const PlanVerdict& v) {
	const MemoryAccount m = memory_account(s.model, s.total_bytes, s.n_tokens);
	std::string out = fmt::format("\n  memory: {}, {} free\n", one_line(s.where), human_bytes(double(m.total)));
	const auto line = [&](const char* what, uint64_t bytes) {
		out += fmt::format("  {:<22}{:>12}\n", what, human_bytes(double(bytes)));
	};
	if (s.model.trained_tokens) {
		line("weights", m.weights);
		if (m.loras) line("adapters", m.loras);
		if (m.vision) line("encoder (mmproj)", m.vision), line("while it encodes", m.image);
		if (m.draft) line(m.draft_cache ? "layers that draft" : "assistant", m.draft);
		if (m.draft_cache) line("their cache, f16", m.draft_cache);
		if (m.window) line("sliding windows", m.window);
		if (m.states) line("recurrent states", m.states);
		line("activations", m.activations);
		line("prompt scratch", m.prompt);
	}
	line("reserve", m.reserve);
	line("left for the cache", m.cache);
	if (s.prediction_bytes && !m.draft)
		out += fmt::format("  not counted: the file's prediction layer of {}, which --draft mtp loads\n",
		                   human_bytes(double(s.prediction_bytes)));
	return out + fmt::format("  {:<22}{:>12}{}\n", "tokens that fit", v.capacity.kept,
	                         v.capacity.evicts ? ", all others are evicted"
	                         : s.model.trained_tokens && v.capacity.by_memory == s.model.trained_tokens
	                             ? ", the trained context"
	                             : "");
}

std::string tiers_text(const KvPlan& plan) {
	std::string out;
	const Select& select = plan.policy.select;
	if (!plan.keeps_all) {
		out += fmt::format("  f16 window: at most {} tokens{}; {} {} at a time\n", select.recent_keep + select.flush,
		                   select.sinks ? fmt::format(" and the first {} of the sequence", select.sinks) : "",
		                   evicts(plan) ? "evicts" : "compresses",
		                   select.flush == 1 ? "one token" : fmt::format("{} tokens", select.flush));
		out += fmt::format("  token selection: {}\n", plan.n_heads > 1    ? "per layer and KV head"
		                                              : plan.n_groups > 1 ? "per layer"
		                                                                  : "the same in all layers");
	}
	std::vector<std::pair<std::string, std::vector<uint32_t>>> alike; // layers grouped by what they store
	std::map<std::string, size_t> index;
	for (uint32_t l = 0; l < plan.shape.n_layers; ++l) {
		const std::string text = layer_text(plan, l);
		const auto [at, fresh] = index.emplace(text, alike.size());
		if (fresh) alike.push_back({text, {}});
		alike[at->second].second.push_back(l);
	}
	for (const auto& [text, layers] : alike) out += fmt::format("  layers {}:\n{}", ranges(layers), text);
	return out;
}

struct Ranked {
	const Planned* policy;
	double loss;  // to sort by: measured divergence; infinite where none was measured; evicting comes last
	size_t bytes; // most bytes of the subject's tokens
};

// A row per policy of tools/dev/quality_smollm2.csv that can be planned for a context longer than what was measured.
constexpr MeasuredQuality kMeasured[] = {
    {"fp16", 0, 0},
    {"rtn8", 0.00009, 0.00003},
    {"rtn4", 0.02697, 0.00607},
    {"rtn2", 1.56882, 0.12562},
    {"kivi4", 0.00420, 0.00100},
    {"kivi4,sinks=4", 0.00238, 0.00071},
    {"kivi2", 0.19176, 0.03768},
    {"kivi2,sinks=4", 0.12809, 0.03096},
    {"kivi2,param_bits=8,sinks=4", 0.13295, 0.03161},
    {"zipcache", 0.14282, 0.03498},
    {"zipcache,sinks=4", 0.12305, 0.03305},
    {"logquant", 0.21045, 0.03935},
    {"logquant,sinks=4", 0.22321, 0.03785},
    {"mikv", 0.39617, 0.06642},
    {"specache2,param_bits=16", 0.07381, 0.02427},
    {"specache1,group=32,flush=32,recent_keep=32,param_bits=16", 0.18717, 0.04546},
    {"asymkv", 0.85885, 0.10552},
    {"xquant,group=128,flush=128,recent_keep=64,kq=28,vq=2,km=30,vm=15", 1.06837, 0.14486},
    {"xquant", 0.23129, 0.04242},
    {"xquant,sinks=4", 0.11894, 0.02955},
    {"mixed,sinks=0", 0.05300, 0.00751},
    {"mixed", 0.02231, 0.00393},
    {"turbo4,sinks=0", 0.00924, 0.00147},
    {"turbo4", 0.00234, 0.00066},
    {"turbo3", 0.01018, 0.00291},
    {"turbo3/2,sinks=0", 0.04977, 0.00839},
    {"turbo3/2", 0.01698, 0.00391},
    {"turbo2,sinks=0", 0.12456, 0.01914},
    {"turbo2", 0.04400, 0.01183},
    {"turbo2/1,sinks=0", 0.19433, 0.03186},
    {"turbo2/1", 0.08828, 0.01990},
};

bool evicts_any(const Ranked& r) { return evicts(r.policy->plan); }
std::string quality_cell(const Planned& p) {
	if (evicts(p.plan)) return "forgets";
	if (p.expected >= 0) return fmt::format("~{:.4f}", p.expected);
	const MeasuredQuality* m = measured_quality(p.plan.policy);
	return m ? fmt::format("{:.4f}", m->kld) : "-";
}
std::string quality_text(const Planned& p, const PlanSubject& s) {
	const KvPlan& plan = p.plan;
	if (evicts(plan)) return "what it evicts cannot be recalled";
	const MeasuredQuality* m = measured_quality(plan.policy);
	if (p.expected >= 0) return fmt::format("{:.4f} nats per token are expected, by 'kvrun tune'", p.expected);
	if (!m) return "not measured with these options; 'kvrun eval' measures it";
	return fmt::format("{:.4f} +- {:.4f} nats per token on {}, {}{}", m->kld, m->half, kMeasuredModel, kMeasuredHow,
	                   s.is_measured ? "" : "; not measured for this model");
}

} // namespace

double expected_rate(const KvPlan& plan, const PlanSubject& s) {
	if (!s.weights || s.bus <= 0 || s.bandwidth <= 0) return 0;
	const uint64_t cache = bytes_at(plan, s.n_tokens).total() + s.model.window_bytes;
	return 1 / step_seconds(*s.weights, cache, s.bus, s.bandwidth);
}

PlanVerdict verdict_of(const KvPlan& plan, const PlanSubject& s) {
	PlanVerdict v;
	v.kept = tokens_kept(plan, s.n_tokens);
	v.known = !s.where.empty();
	ModelMemory model = s.model;
	if (s.beyond_training()) model.trained_tokens = 0; // the memory alone decides; the text has a note
	if (v.known) v.capacity = capacity(plan, model, s.total_bytes);
	v.fits = v.known && s.n_tokens <= v.capacity.by_memory && v.kept == s.n_tokens;
	return v;
}

std::string why_no_cache(const PlanSubject& s) {
	const MemoryAccount m = memory_account(s.model, s.total_bytes, /*n_tokens=*/1);
	if (s.where.empty() || m.cache > 0 || !m.weights) return {};
	const std::string states =
	    m.states ? fmt::format(" + {} recurrent states", human_bytes(double(m.states))) : std::string();
	return fmt::format("weights {}{} + {} activations do not fit {}; the cache is not the problem",
	                   human_bytes(double(m.weights)), states, human_bytes(double(m.activations + m.prompt)),
	                   human_bytes(double(s.total_bytes)));
}

std::string verdict_text(const KvPlan& plan, const PlanSubject& s, const PlanVerdict& v) {
	if (!v.known) return "not judged: no usable device; give --memory";
	const uint32_t trained = s.model.trained_tokens;
	const std::string asked = fmt::format("{} tokens{}", s.n_tokens, s.requested ? " requested" : "");
	if (v.fits) {
		if (s.beyond_training())
			return fmt::format("fits: {}, {} fit; the model was trained for {}, answers beyond them may be poor", asked,
			                   v.capacity.by_memory, trained);
		const bool all = trained && v.capacity.by_memory == trained;
		return fmt::format("fits: {}, {} fit{}", asked, v.capacity.by_memory, all ? " (the trained context)" : "");
	}
	if (const std::string why = why_no_cache(s); !why.empty()) return "does NOT fit: " + why;
	if (s.n_tokens > v.capacity.by_memory) {
		const bool context = trained && v.capacity.by_memory == trained;
		return fmt::format("does NOT fit: {}, {} fit{}", asked, v.capacity.kept,
		                   context ? " (the trained context)" : "");
	}
	return fmt::format("does NOT fit: {}, {} keeps {} and evicts the rest", asked, one_line(plan.policy.text), v.kept);
}

const char* const kMeasuredModel = "SmolLM2-135M-Instruct";
const char* const kMeasuredHow = "1024 tokens of prose, dialogue and code";

static bool store_alike(const KvPolicy& a, const KvPolicy& b) {
	return a.name == b.name && a.salient == b.salient && a.regular == b.regular && a.select == b.select &&
	       a.layers == b.layers && a.share == b.share && a.fetch == b.fetch && a.rope_bits == b.rope_bits &&
	       a.rope_layers == b.rope_layers && a.fetch_sync == b.fetch_sync && a.page == b.page;
}

const MeasuredQuality* measured_quality(const KvPolicy& p) {
	const auto same = std::ranges::find(kMeasured, p.text, &MeasuredQuality::policy);
	if (same != std::end(kMeasured)) return same;
	static const std::vector<KvPolicy> measured = [] { // other ways to write them: turbo is turbo3/2
		std::vector<KvPolicy> out;
		for (const MeasuredQuality& m : kMeasured) out.push_back(parse_policy(m.policy));
		return out;
	}();
	const auto found =
	    std::ranges::find_if(measured, [&](const KvPolicy& m) { return store_alike(m, parse_policy(p.text)); });
	return found == measured.end() ? nullptr : &kMeasured[found - measured.begin()];
}

bool is_measured_model(const std::string& path, const std::string& name) {
	// the second is what the file calls itself
	for (const char* is : {"smollm2135minstruct", "smollm2135m8klc100kmix1ep2"})
		for (const std::string& given : {sys::path_of(path).stem().string(), name})
			if (bare_name(given).find(is) != std::string::npos) return true;
	return false;
}

Json plan_json(const Planned& planned, const PlanSubject& s) {
	const KvPlan& plan = planned.plan;
	const PlanVerdict& v = planned.verdict;
	const KvBytes b = bytes_at(plan, s.n_tokens);
	const double elements = std::max(double(plan.f16_bytes(s.n_tokens)) / 2, 1.);
	const double stored = stored_bits(plan, s.n_tokens);
	const MeasuredQuality* measured = measured_quality(plan.policy);
	Json j = {
	    {"policy", plan.policy.text},
	    {"source", plan.policy.source},
	    {"shape", {{"n_layers", s.shape.n_layers}, {"n_kv_heads", s.shape.n_kv_heads}, {"head_dim", s.shape.head_dim}}},
	    {"tokens", s.n_tokens},
	    {"fits", v.known ? Json(v.fits) : Json(nullptr)},
	    {"verdict", verdict_text(plan, s, v)},
	    {"evicts", evicts(plan)},
	    {"tokens_kept", v.kept},
	    {"stored_bits_per_element", stored},
	    {"code_bits_per_element", code_bits(plan)},
	    {"ratio", 16 / stored},
	    {"bytes", b.total()},
	    {"most_bytes", most_bytes(plan, s.n_tokens)},
	    {"f16_bytes", plan.f16_bytes(s.n_tokens)}};
	if (measured)
		j["measured"] = {{"model", kMeasuredModel},
		                 {"on", kMeasuredHow},
		                 {"policy", measured->policy},
		                 {"kld", measured->kld},
		                 {"half", measured->half}};
	for (const SizeRow& p : kSizeRows) {
		j["parts"][p.key] = b.*p.bytes;
		j["bits_per_element"][p.key] = double(b.*p.bytes) * 8 / elements;
	}
	if (s.shape.rope_dim) j["shape"]["rope_dim"] = s.shape.rope_dim;
	if (plan.fetches()) j["host_bytes"] = plan.f16_bytes(s.n_tokens);
	j["token_sets"] = uint64_t(plan.n_groups) * plan.n_heads;
	for (int t = 0; t < kTiers; ++t)
		if (plan.fill[t] != Fill::None)
			j["pages"][tier_name(t)] = {{"tokens", plan.page[t]}, {"fill", fill_name(plan.fill[t])}};
	for (uint32_t l = 0; l < plan.shape.n_layers; ++l) j["layers"].push_back(layer_json(plan, l));
	if (v.known) j["memory"] = memory_json(s, v);
	if (s.weights) j["weights"] = weights_json(plan, s);
	return j;
}

static std::string shape_text(const KvShape& s) {
	if (!s.n_layers) return "no layer attends";
	if (s.rope_dim)
		return fmt::format("{} layers x latents of {} channels and rotated keys of {}", s.n_layers, s.head_dim,
		                   s.rope_dim);
	return fmt::format("{} layers x {} KV heads x head_dim {}", s.n_layers, s.n_kv_heads, s.head_dim);
}

void print_plan(const Planned& planned, const PlanSubject& s) {
	const KvPlan& plan = planned.plan;
	const PlanVerdict& v = planned.verdict;
	const KvBytes b = bytes_at(plan, s.n_tokens);
	const double elements = std::max(double(plan.f16_bytes(s.n_tokens)) / 2, 1.),
	             stored = stored_bits(plan, s.n_tokens);
	std::string out = verdict_text(plan, s, v) + "\n\n";
	out += fmt::format("{} [{}]: {}\n{}: {}, {} tokens\n\n", one_line(plan.policy.text), plan.policy.source,
	                   plan.policy.summary, one_line(s.name), shape_text(s.shape), s.n_tokens);
	out += fmt::format("  {:<22}{:>12}{:>16}\n", "", "bytes", "bits/element");
	for (const SizeRow& p : kSizeRows)
		if (b.*p.bytes)
			out += fmt::format("  {:<22}{:>12}{:>16.3f}\n", p.what, human_bytes(double(b.*p.bytes)),
			                   double(b.*p.bytes) * 8 / elements);
	out += fmt::format("  {:<22}{:>12}{:>16.3f}\n", "stored", human_bytes(double(b.total())), stored);
	if (const size_t most = most_bytes(plan, s.n_tokens); most > b.total())
		out += fmt::format("  {:<22}{:>12}{:>16.3f}  while tokens come one by one and the window fills up\n", "at most",
		                   human_bytes(double(most)), double(most) * 8 / elements);
	if (plan.fetches())
		out += fmt::format("  {:<22}{:>12}  in host memory, of which a step fetches {} tokens per layer and kv head\n",
		                   "f16 copy", human_bytes(double(plan.f16_bytes(s.n_tokens))), plan.policy.fetch);
	out += fmt::format("  {:<22}{:>12}{:>16.3f}\n", "plain f16", human_bytes(double(plan.f16_bytes(s.n_tokens))), 16.0);
	out += fmt::format("  {}; codes alone {:.3g} bits per element\n  KL divergence from f16: {}\n",
	                   size_ratio(16 / stored), code_bits(plan), quality_text(planned, s));
	if (evicts(plan)) out += fmt::format("  evicts tokens: {} of {} are kept\n", v.kept, s.n_tokens);
	out += "\n" + tiers_text(plan);
	if (v.known) out += memory_text(s, v);
	if (s.weights) out += weights_lines(plan, s);
	write_stdout(out);
}

void print_ranking(const std::vector<Planned>& plans, const PlanSubject& s) {
	std::vector<Ranked> rows;
	for (const Planned& p : plans) {
		const MeasuredQuality* m = measured_quality(p.plan.policy);
		const double none = std::numeric_limits<double>::infinity();
		rows.push_back({&p, p.expected >= 0 ? p.expected : m ? m->kld : none, most_bytes(p.plan, s.n_tokens)});
	}
	std::stable_sort(rows.begin(), rows.end(), [](const Ranked& a, const Ranked& b) {
		const PlanVerdict &x = a.policy->verdict, &y = b.policy->verdict;
		if (x.fits != y.fits) return x.fits;
		if (!x.fits && x.capacity.kept != y.capacity.kept) return x.capacity.kept > y.capacity.kept;
		return std::tuple(evicts_any(a), a.loss, a.bytes) < std::tuple(evicts_any(b), b.loss, b.bytes);
	});
	const auto n_fit = std::ranges::count_if(rows, [](const Ranked& r) { return r.policy->verdict.fits; });
	const bool known = !s.where.empty();
	std::string head = fmt::format("{}: {}, {} tokens{}\n", one_line(s.name), shape_text(s.shape), s.n_tokens,
	                               s.requested ? " requested" : "");
	if (s.model.trained_tokens) head.insert(head.size() - 1, fmt::format("; trained for {}", s.model.trained_tokens));
	if (known)
		head = fmt::format("{}: {} of {} policies hold {} tokens in {} ({})\n\n", n_fit ? "fits" : "does NOT fit",
		                   n_fit, rows.size(), s.n_tokens, human_bytes(double(s.total_bytes)), one_line(s.where)) +
		       head;
	std::string why = why_no_cache(s);
	for (const Planned& p : plans) // with fewer weights on the device there may be room
		if (!why.empty()) why = why_no_cache(p.subject);
	if (why.empty() && s.beyond_training())
		why = fmt::format("note: the model was trained for {} tokens; answers beyond them may be poor",
		                  s.model.trained_tokens);
	if (!why.empty()) head.insert(head.find('\n') + 1, why + "\n");
	std::vector<std::vector<Column>> table;
	const bool some_in_host =
	    std::ranges::any_of(plans, [](const Planned& p) { return p.subject.weights.has_value(); });
	for (const Ranked& r : rows) {
		const KvPlan& plan = r.policy->plan;
		const PlanVerdict& v = r.policy->verdict;
		const PlanSubject& own = r.policy->subject;
		auto& row = table.emplace_back();
		row = {
		    {"kv", one_line(r.policy->asked.empty() ? plan.policy.text : r.policy->asked)},
		    {"fits", !known                ? "-"
		             : v.fits              ? "yes"
		             : v.kept < s.n_tokens ? fmt::format("keeps {}", v.kept)
		                                   : "no"},
		    {"GiB at most", fmt::format("{:.3f}", double(r.bytes) / double(1 << 30))},
		    {"most tokens", known ? fmt::format("{}{}", v.capacity.kept, v.capacity.evicts ? " (evicts)" : "") : "-"},
		    {"bits on average", fmt::format("{:.2f}", stored_bits(plan, s.n_tokens))},
		    {fmt::format("KLD on {}", kMeasuredModel), quality_cell(*r.policy)}};
		if (!some_in_host) continue;
		row.push_back({"weights over the bus", own.weights ? human_bytes(double(own.weights->host_bytes())) : "none"});
		const double rate = expected_rate(plan, own);
		row.push_back({"tokens/s, estimate", rate > 0 ? fmt::format("{:.1f}", rate) : "-"});
	}
	write_stdout(head + "\n");
	print_table(table);
	write_stdout(fmt::format(
	    "\nGiB at most: largest size of the cache while tokens are added one at a time.\n"
	    "bits on average: bits stored per element after a prompt of that many tokens.\n"
	    "KLD: KL divergence from an f16 cache, nats per token, as measured on {} with {}\n(tools/BENCHMARKS.md){}.\n"
	    "-: not measured with these options. forgets: evicts tokens, which cannot be recalled.{}\n",
	    kMeasuredModel, kMeasuredHow,
	    s.is_measured ? "" : "; not measured for this model,\n'kvrun eval' and 'kvrun tune' do that",
	    std::ranges::any_of(plans, [](const Planned& p) { return p.expected >= 0; })
	        ? " ~: expected for this model, by 'kvrun tune'."
	        : ""));
}

} // namespace kvrun
