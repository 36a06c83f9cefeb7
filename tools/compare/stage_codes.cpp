// Stage `codes`: the same keys, values and queries go through a device's cache and the cpu backend's. Stored bits must
// be equal, and the rankings of tokens must agree.
#include "engine/core/splitmix64.h"
#include "models/config.h"
#include "tools/args_engine.h"
#include "tools/compare/compare.h"
#include "tools/eval/replay.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace kvrun::comparison {
namespace {

struct Tensors {
	std::vector<float> q, k, v, dq;
};

// Nearly normal numbers with outlier channels, as in keys.
std::vector<float> numbers(size_t n, uint32_t channels, uint64_t seed) {
	std::vector<float> out(n);
	for (size_t i = 0; i < n; ++i) {
		const uint64_t x = splitmix64(seed + i * kSplitmixStep);
		const int64_t sum =
		    int64_t(x & 0xffff) + int64_t(x >> 16 & 0xffff) + int64_t(x >> 32 & 0xffff) + int64_t(x >> 48);
		const size_t c = i % channels;
		out[i] = float(sum - 131070) * (1.f / 32768) * (c % 13 == 5 ? 6.f : 1.f) + (c % 7 == 3 ? 2.f : 0.f);
	}
	return out;
}

uint64_t hash_of(std::span<const float> x) {
	uint64_t h = 0;
	for (const float f : x) h = splitmix64(h ^ (f == 0 ? 0 : std::bit_cast<uint32_t>(f))); // 0 and -0 count as equal
	return h;
}

uint64_t differing(std::span<const float> a, std::span<const float> b) {
	uint64_t n = 0;
	for (size_t i = 0; i < a.size(); ++i) n += a[i] != b[i] && !(std::isnan(a[i]) && std::isnan(b[i]));
	return n;
}

// Spearman's correlation of two rankings; 1 if it is undefined.
double rank_correlation(std::span<const float> a, std::span<const float> b) {
	const size_t n = a.size();
	if (n < 2) return 1;
	const auto ranks = [n](std::span<const float> x) {
		std::vector<size_t> order(n), rank(n);
		std::iota(order.begin(), order.end(), size_t(0));
		std::ranges::stable_sort(order, [&](size_t i, size_t j) { return x[i] < x[j]; });
		for (size_t i = 0; i < n; ++i) rank[order[i]] = i;
		return rank;
	};
	const std::vector<size_t> ra = ranks(a), rb = ranks(b);
	double squares = 0;
	for (size_t i = 0; i < n; ++i) {
		const double d = double(ra[i]) - double(rb[i]);
		squares += d * d;
	}
	return 1 - 6 * squares / (double(n) * (double(n) * double(n) - 1));
}

Json compare_results(const ReplayResult& x, const ReplayResult& ref) {
	uint64_t tiers = 0;
	for (size_t i = 0; i < x.tier.size(); ++i) tiers += x.tier[i] != ref.tier[i];
	Json j = {{"elements", x.k_hat.size()},
	          {"k_differs", differing(x.k_hat, ref.k_hat)},
	          {"v_differs", differing(x.v_hat, ref.v_hat)},
	          {"tokens", x.tier.size()},
	          {"tier_differs", tiers},
	          {"hash", fmt::format("{:016x}", hash_of(x.k_hat) ^ splitmix64(hash_of(x.v_hat)))}};
	if (!x.score.empty()) j["rank_correlation"] = rank_correlation(x.score, ref.score);
	return j;
}

} // namespace

Json run_codes(const Options& o, const Device& d) {
	const Config c = read_config(Gguf::open(o.model));
	const uint32_t layers = std::min(c.n_layers, 2u), n = 224, queries = 2;
	const size_t per_token = size_t(c.n_heads) * c.head_dim, kv_token = size_t(c.n_kv_heads) * c.head_dim;
	const Tensors t = {numbers(layers * n * per_token, c.head_dim, 1), numbers(layers * n * kv_token, c.head_dim, 2),
	                   numbers(layers * n * kv_token, c.head_dim, 3), numbers(queries * per_token, c.head_dim, 4)};
	const auto device = open_backend(backend_options(d.select, false));
	const auto reference = open_backend(backend_options("cpu", false));
	Json out = Json::object();
	for (const std::string& policy : policies(o)) {
		const KvPlan plan = make_plan(parse_policy(policy), {layers, c.n_kv_heads, c.head_dim});
		const ReplayInput in = {layers, n, c.n_heads, c.n_kv_heads, c.head_dim, queries, t.q, t.k, t.v, t.dq};
		out[policy] = compare_results(replay(*device, plan, in), replay(*reference, plan, in));
	}
	return {{"policies", out}};
}

} // namespace kvrun::comparison
