// Stage `ops`: every operation of a prompt and of decode steps, at the model's shapes, compared with the cpu backend.
#include "models/synth/shape.h"
#include "tools/args_engine.h"
#include "tools/compare/compare.h"
#include "tools/compare/sequences.h"
#include <algorithm>
#include <bit>
#include <cmath>

namespace kvrun::comparison {
namespace {

constexpr size_t kUlpBins = 9;               // 0, 1, 2..3, 4..7, 8..15, 16..63, 64..1023, 1024..65535, more
constexpr double kRealWeights = 50e6;        // parameters; for larger models ops run on one layer of their shape
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

// The model itself if it is small; else one layer of its shape, with random weights and a small vocabulary.
std::string model_of_shape(const std::string& path) {
	const Gguf g = Gguf::open(path);
	const Config c = read_config(g);
	if (parameter_count(c) <= kRealWeights) return path;
	const GgufTensor* weight = nullptr; // of a mixture, the experts'
	for (const char* part : {"ffn_down", "ffn_down_exps", "attn_output"})
		if (!weight) weight = g.find_tensor(fmt::format("blk.0.{}.weight", part));
	if (!weight)
		fail(Code::Unsupported, "{}: its first layer is not one that a synthetic model of its shape has; leave out ops",
		     g.name());
	std::string name = dtype_info(weight->type).name;
	std::ranges::transform(name, name.begin(), [](char x) { return char(x >= 'A' && x <= 'Z' ? x + 32 : x); });
	return fmt::format("synth:{},arch={},dim={},hidden={},layers=1,heads={},kv_heads={},head_dim={},vocab=2048:{}",
	                   "llama-2-7b", c.arch, c.dim, c.hidden_dim, c.n_heads, c.n_kv_heads, c.head_dim, name);
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
