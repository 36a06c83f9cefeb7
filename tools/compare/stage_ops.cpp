// Stage `ops`: every operation of a prompt and of decode steps, at the model's shapes, compared with the cpu backend.
#include "models/synth/shape_rows.h"
#include "tools/args_engine.h"
#include "tools/compare/compare.h"
#include "tools/compare/sequences.h"
#include <algorithm>
#include <bit>
#include <cmath>

namespace kvrun::comparison {
namespace {

constexpr size_t kUlpBins = 9;               // 0, 1, 2..3, 4..7, 8..15, 16..63, 64..1023, 1024..65535, more
constexpr double kRealWeights = 50e6;        // parameters; for larger models ops run on a few layers of their shape
constexpr double kExpertWeights = 100e6;     // parameters of the experts of such a layer
constexpr uint32_t kMostLayers = 6;          // of those, as many as it takes to have one of each kind
constexpr uint32_t kFirst = 160, kMore = 33; // tokens of the prompts: longer than the f16 windows of most policies

struct Tally {
	uint64_t calls = 0, elements = 0, bad = 0, nonfinite = 0, code_steps = 0;
	double max_error = 0, max_share = 0; // largest error, and as a share of the allowed error
	std::string worst, shape;            // output and shape with that error
	uint64_t ulp[kUlpBins] = {};
};

// Maps floats to integers in the same order; neighbours differ by 1.
int64_t ordered(float x) {
	const auto i = std::bit_cast<int32_t>(x);
	return i >= 0 ? int64_t(i) : -int64_t(i & 0x7fffffff);
}

size_t ulp_bin(float x, float ref) {
	if (!std::isfinite(x) || !std::isfinite(ref)) return x == ref ? 0 : kUlpBins - 1;
	const uint64_t d = uint64_t(std::abs(ordered(x) - ordered(ref)));
	constexpr uint64_t kFrom[kUlpBins] = {0, 1, 2, 4, 8, 16, 64, 1024, 65536};
	size_t bin = kUlpBins - 1;
	while (d < kFrom[bin]) --bin;
	return bin;
}

void add(Tally& t, const OpComparison& c) {
	const Difference& d = c.difference;
	++t.calls;
	t.elements += d.n, t.bad += d.n_bad, t.nonfinite += d.n_bad ? d.n_nonfinite : 0;
	t.max_error = std::max(t.max_error, d.max_error);
	if (c.codes) {
		for (size_t i = 0; i < c.x.size(); ++i) t.code_steps += c.x[i] != c.ref[i];
	} else {
		for (size_t i = 0; i < c.x.size(); ++i) ++t.ulp[ulp_bin(c.x[i], c.ref[i])];
	}
	const double error = d.n ? std::abs(double(c.x[d.worst]) - double(c.ref[d.worst])) : 0;
	const double share = error > 0 && d.allowed > 0 ? error / d.allowed : 0;
	if (share > t.max_share || (d.n_bad && t.shape.empty()))
		t.max_share = std::max(share, t.max_share), t.worst = c.output, t.shape = c.shape;
}

// Of the table of synthetic models: of the same family, with the most sizes that are equal; else the first one.
const SynthRow& nearest_row(const Config& c, const Experts& e) {
	const auto likeness = [&](const SynthRow& r) {
		if (r.arch != c.arch) return 0;
		return 1 + 4 * ((r.more.experts.n > 0) == (e.n > 0)) + 2 * (r.dim == c.dim) + (r.heads == c.n_heads);
	};
	return *std::ranges::max_element(synth_rows(), {}, likeness);
}

// Kinds of layers that there are: each has operations that the others have not.
uint32_t kinds_of(const Config& c) {
	uint32_t kinds = 0;
	for (const Layer& l : c.layers) {
		if (attends(l)) kinds |= l.window ? 1 : 2;
		if (l.recurrent.n_heads) kinds |= 4;
		if (!l.mixes) kinds |= 8;
		if (l.experts.n) kinds |= 16;
	}
	return kinds;
}

// As many experts as kExpertWeights has room for, and at least twice those of a token, so that there is a choice.
std::string experts_text(const Config& c, const Experts& e, const Experts& of_row) {
	const uint32_t groups = of_row.n_groups, per_group = (e.used + of_row.used_groups - 1) / of_row.used_groups,
	               least = groups * std::max({per_group, (2 * e.used + groups - 1) / groups, 2u});
	const auto room = uint32_t(kExpertWeights / (3. * e.width(c.dim) * e.hidden_dim));
	const uint32_t n = std::min(std::max(room - room % groups, least), e.n);
	std::string text = fmt::format(",experts={},used={},expert_hidden={}", n, e.used, e.hidden_dim);
	if (e.shared_dim) text += fmt::format(",shared={}", e.shared_dim);
	return text;
}

// The type of its largest matrices: those of experts, else of the MLP, else of attention or state.
DType weight_type(const Gguf& g, const Config& c) {
	for (const char* part : {"ffn_up_exps", "ffn_down_exps", "ffn_down", "attn_output", "ssm_out"})
		for (uint32_t l = 0; l < c.n_layers; ++l)
			if (const GgufTensor* t = g.find_tensor(fmt::format("blk.{}.{}.weight", l, part))) return t->type;
	fail(Code::Unsupported, "{}: its layers are not ones that a synthetic model of its shape has; leave out ops",
	     g.name());
}

// The model itself if it is small; else a few layers of its shape, one of each kind among them, with random weights and
// a small vocabulary.
std::string model_of_shape(const std::string& path) {
	const Gguf g = Gguf::open(path);
	const Config c = read_config(g);
	if (parameter_count(c) <= kRealWeights) return path;
	std::string type = dtype_info(weight_type(g, c)).name;
	std::ranges::transform(type, type.begin(), [](char x) { return char(x >= 'A' && x <= 'Z' ? x + 32 : x); });
	const auto mixture = std::ranges::find_if(c.layers, [](const Layer& l) { return l.experts.n > 0; });
	const Experts experts = mixture == c.layers.end() ? Experts() : mixture->experts;
	const SynthRow& row = nearest_row(c, experts);
	std::string shape = fmt::format("synth:{},arch={},vocab=2048", row.name, c.arch);
	for (const auto& [key, value] : {std::pair("dim", c.dim),
	                                 {"hidden", c.hidden_dim},
	                                 {"heads", c.n_heads},
	                                 {"kv_heads", c.n_kv_heads},
	                                 {"head_dim", c.head_dim}})
		if (value) shape += fmt::format(",{}={}", key, value); // else the file has none, and the row's stays
	if (experts.n) shape += experts_text(c, experts, row.more.experts);
	const auto with = [&](uint32_t layers) { return fmt::format("{},layers={}:{}", shape, layers, type); };
	const auto kinds = [&](uint32_t layers) {
		return kinds_of(parse_synth(with(layers).substr(kSynthPrefix.size())).config);
	};
	try {
		const uint32_t all = kinds(std::min(c.n_layers, kMostLayers));
		uint32_t layers = 1;
		while (kinds(layers) != all) ++layers;
		return with(layers);
	} catch (const Error& e) { fail(Code::Unsupported, "{}: {}; leave out ops", g.name(), e.what()); }
}

Json to_json(const std::string& op, const Tally& t) {
	return {{"op", op},
	        {"calls", t.calls},
	        {"elements", t.elements},
	        {"bad", t.bad},
	        {"nonfinite", t.nonfinite},
	        {"codes_that_differ", t.code_steps},
	        {"max_error", t.max_error},
	        {"share_of_tolerance", t.max_share},
	        {"worst_output", t.worst},
	        {"worst_shape", t.shape},
	        {"ulp", t.ulp}};
}

} // namespace

Json run_ops(const Options& o, const Device& d) {
	std::map<std::string, Tally> tallies; // by op
	EngineOptions e;
	e.model = model_of_shape(o.model);
	e.backend = backend_options(d.select, /*check=*/true);
	e.backend.compared = [&](const OpComparison& c) { add(tallies[std::string(c.op)], c); };
	e.ubatch = 64;
	const auto engine = Engine::open(e);
	const bool small = e.model == o.model;
	for (const std::string& policy : policies(o)) {
		Session s(*engine, {.kv = parse_policy(policy), .ctx = kFirst + 2 * kMore + 8});
		const std::vector<uint32_t> tokens = some_tokens(*engine, kFirst + 2 * kMore + 4);
		const std::span<const uint32_t> all(tokens);
		if (small)
			s.prefill(all.first(kFirst)); // packs tokens and scores its own
		else
			s.prefill(all.first(kMore)), fill_with_noise(s, kFirst);
		s.prefill(all.subspan(kFirst, kMore)); // reads packed tokens
		for (uint32_t i = 0; i < 4; ++i) (void)s.decode(tokens[kFirst + kMore + i]);
	}
	Json ops = Json::array();
	for (const auto& [op, t] : tallies) ops.push_back(to_json(op, t));
	return {{"model", e.model}, {"ops", ops}};
}

} // namespace kvrun::comparison
