// Mixtures of experts: choice, sort, products by the chosen experts' weights, and their sum.
#include "shared/experts.h"
#include "tests/support/caps_guard.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/rig.h"
#include "tests/support/shuffled.h"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

using namespace kvrun;

namespace {

struct RouteRow {
	uint32_t T, n_experts, used;
	Gating gating = Gating::Softmax;
	bool normalise = false, bias = false;
	float scale = 1;
	uint32_t n_groups = 1, used_groups = 1;
	bool ties = false;     // logits are multiples of 1/2
	bool factors = false;  // factors of experts
	bool by_token = false; // a table names experts
	std::string text() const {
		return fmt::format("route: T {} {} of {} {}{}{} times {} groups {} of {}{}{}", T, used, n_experts,
		                   gating == Gating::Sigmoid        ? "sigmoid"
		                   : gating == Gating::SqrtSoftplus ? "root of softplus"
		                   : gating == Gating::Near         ? "near"
		                                                    : "softmax",
		                   normalise ? " normalised" : "", bias ? " bias" : "", scale, used_groups, n_groups,
		                   ties ? " ties" : "", factors ? " factors" : "") +
		       (by_token ? " by token" : "");
	}
};

struct Routed {
	Words ids;
	Floats weights;
};

// By sorting all pairs, in double.
// named: of each row, the experts that a table names; empty: they are chosen.
Routed route_reference(const RouteRow& r, const Floats& logits, const Floats& bias, const Floats& factors,
                       const Words& named) {
	Routed out;
	for (uint32_t t = 0; t < r.T; ++t) {
		std::vector<double> p(r.n_experts), choice(r.n_experts);
		double sum = 0;
		for (uint32_t e = 0; e < r.n_experts; ++e) {
			const double x = double(logits[size_t(t) * r.n_experts + e]);
			sum += p[e] = r.gating == Gating::Sigmoid        ? 1 / (1 + std::exp(-x))
			              : r.gating == Gating::SqrtSoftplus ? std::sqrt(std::log1p(std::exp(x)))
			                                                 : std::exp(x);
		}
		for (uint32_t e = 0; e < r.n_experts; ++e) {
			if (r.gating != Gating::Sigmoid && r.gating != Gating::SqrtSoftplus) p[e] /= sum;
			choice[e] = p[e] + (r.bias ? double(bias[e]) : 0);
		}
		const uint32_t each = r.n_experts / r.n_groups;
		std::vector<std::pair<double, uint32_t>> groups; // in ascending order: the best has the largest value
		for (uint32_t g = 0; g < r.n_groups; ++g) {
			std::vector<double> c(choice.begin() + g * each, choice.begin() + (g + 1) * each);
			std::ranges::sort(c, std::greater<>());
			groups.push_back({-(r.bias && r.n_groups > 1 ? c.at(0) + c.at(1) : c[0]), g});
		}
		std::ranges::sort(groups);
		std::vector<std::pair<double, uint32_t>> all;
		for (uint32_t i = 0; i < r.used_groups; ++i)
			for (uint32_t e = groups[i].second * each; e < (groups[i].second + 1) * each; ++e)
				all.push_back({-choice[e], e});
		std::ranges::sort(all);
		for (uint32_t j = 0; j < r.used && r.by_token; ++j) all[j].second = named[size_t(t) * r.used + j];
		for (uint32_t j = 0; j < r.used && r.gating == Gating::Near; ++j) { // the rest of `all` can still be chosen
			const auto logit = [&](size_t i) { return double(logits[size_t(t) * r.n_experts + all[i].second]); };
			double near = 0;
			for (size_t i = j; i < all.size(); ++i)
				if ((logit(j) - logit(i)) / std::max(std::abs(logit(i)), logit(j)) <= double(KV_NEAR))
					near += std::exp(logit(i) - logit(j));
			p[all[j].second] = 1 / near;
		}
		double chosen = 0;
		for (uint32_t j = 0; j < r.used; ++j) chosen += p[all[j].second];
		for (uint32_t j = 0; j < r.used; ++j) {
			out.ids.push_back(all[j].second);
			const double factor = r.factors ? double(factors[all[j].second]) : 1;
			out.weights.push_back(float(p[all[j].second] / (r.normalise ? chosen : 1) * double(r.scale) * factor));
		}
	}
	return out;
}

std::vector<RouteRow> route_rows() {
	std::vector<RouteRow> rows;
	constexpr std::pair<uint32_t, uint32_t> shapes[] = {{8, 2},    {60, 4}, {128, 8}, {32, 4},
	                                                    {512, 10}, {1, 1},  {33, 32}};
	for (const auto& [n, used] : shapes)
		for (const Gating g : {Gating::Softmax, Gating::Sigmoid})
			for (const uint32_t T : {1u, 5u, 67u})
				rows.push_back({T, n, used, g, T != 5, g == Gating::Sigmoid && T > 1, T == 67 ? 2.5f : 1.f});
	rows.push_back({9, 64, 6, Gating::Softmax, false, true});             // ernie4_5-moe
	rows.push_back({9, 64, 6, Gating::Softmax, true, false, 1, 8, 3});    // deepseek2
	rows.push_back({9, 256, 8, Gating::Sigmoid, true, true, 2.5f, 8, 4}); // deepseek3
	rows.push_back({40, 16, 5, Gating::Softmax, true, false, 1, 1, 1, true});
	rows.push_back({40, 16, 5, Gating::Sigmoid, false, false, 1, 1, 1, true});
	rows.push_back({40000, 8, 2, Gating::Softmax, true});
	rows.push_back({67, 16, 2, Gating::Near}); // phimoe
	rows.push_back({40, 300, 6, Gating::Near, true, false, 2});
	rows.push_back({40, 16, 3, Gating::Near, false, false, 1, 1, 1, true});
	rows.push_back({9, 128, 8, Gating::Softmax, true, false, 1, 1, 1, false, true}); // gemma4
	rows.push_back({3, 60, 32, Gating::Sigmoid, false, true, 2.5f, 1, 1, false, true});
	for (const uint32_t T : {1u, 40u}) { // deepseek4
		rows.push_back({T, 256, 6, Gating::SqrtSoftplus, true, true, 1.5f});
		rows.push_back({T, 256, 6, Gating::SqrtSoftplus, true, false, 1.5f, 1, 1, false, false, true});
	}
	rows.push_back({9, 16, 5, Gating::Sigmoid, false, false, 1, 1, 1, false, false, true});
	return rows;
}

struct ExpertRow {
	DType type;
	uint32_t T, n, d, n_experts, used;
	Epilogue epilogue = Epilogue::None;
	bool decode = false, bias = false;
	bool by_slot = false; // x has a row for each slot
	bool skewed = false;  // most rows choose the same experts
	DType second = {};    // of the second weight, when it differs
	std::string text() const {
		constexpr const char* names[] = {"", "", " swiglu", " clamped swiglu"};
		return fmt::format("{}: T {} n {} d {} {} {} of {}{}{}{}{}{}", decode ? "expert_matvec" : "expert_matmul", T, n,
		                   d, dtype_info(type).name, used, n_experts, names[int(epilogue)], bias ? " bias" : "",
		                   by_slot ? " a row of x per slot" : "", skewed ? " skewed" : "",
		                   second != DType{} ? fmt::format(" and {}", dtype_info(second).name) : "");
	}
};

std::vector<ExpertRow> expert_rows() {
	std::vector<ExpertRow> rows;
	size_t i = 0;
	for (DType t : kTensorTypes)
		for (const bool decode : {true, false}) {
			const uint32_t n = dtype_info(t).block == 256 ? 512 : whole_blocks(t, ++i % 2 ? 160 : 64);
			for (const uint32_t T : decode ? std::vector<uint32_t>{1, 3, 17} : std::vector<uint32_t>{1, 30, 150}) {
				rows.push_back({t, T, n, 40, 8, 2, Epilogue::SwiGLU, decode, i % 2 == 0, false, T == 150});
				rows.push_back({t, T, n, 70, 6, 3, Epilogue::None, decode, i % 2 == 1, true, false});
				if (T == 3 || T == 30) rows.push_back({t, T, n, 33, 5, 4, Epilogue::ClampedSwiGLU, decode, true});
				++i;
			}
		}
	for (const bool decode : {true, false}) {
		rows.push_back({DType::F32, 5, 172, 20, 3, 2, Epilogue::SwiGLU, decode, true}); // odd columns
		rows.push_back({DType::Q4_K, 5, 256, 20, 3, 2, Epilogue::SwiGLU, decode, true, false, false, DType::Q6_K});
		rows.push_back(
		    {DType::Q4_K, 5, 256, 20, 3, 2, Epilogue::ClampedSwiGLU, decode, true, false, false, DType::Q6_K});
		rows.push_back({DType::Q8_0, 7, 64, 16, 128, 8, Epilogue::SwiGLU, decode}); // more experts than most have slots
		rows.push_back({DType::Q8_0, 7, 64, 16, 128, 8, Epilogue::None, decode, false, true, true});
		rows.push_back({DType::Q8_0, 9, 2144, 24, 4, 4, Epilogue::SwiGLU, decode}); // several pieces of x
	}
	rows.push_back({DType::Q8_0, 700, 64, 96, 4, 2, Epilogue::SwiGLU, false, false, false, true}); // several tiles
	rows.push_back({DType::F16, 700, 64, 96, 4, 2, Epilogue::None, false, true, true, true});
	return rows;
}

// Different experts for each row; skewed: most rows begin with the same experts.
Words random_ids(const ExpertRow& e, Random& random) {
	Words ids;
	std::vector<uint32_t> all(e.n_experts);
	for (uint32_t t = 0; t < e.T; ++t) {
		std::iota(all.begin(), all.end(), 0u);
		for (uint32_t j = 0; j < e.used; ++j) {
			if (!e.skewed || random.below(8) == 0) std::swap(all[j], all[j + random.below(e.n_experts - j)]);
			ids.push_back(all[j]);
		}
	}
	return ids;
}

Words tiles_reference(const Words& ids, uint32_t n_experts) {
	const uint32_t n = expert_tiles(uint32_t(ids.size()), n_experts);
	Words out;
	for (uint32_t e = 0; e < n_experts; ++e) {
		Words slots;
		for (uint32_t s = 0; s < ids.size(); ++s)
			if (ids[s] == e) slots.push_back(s);
		for (size_t first = 0; first < slots.size(); first += KV_EXPERT_TILE) {
			out.push_back(e);
			for (size_t i = first; i < first + KV_EXPERT_TILE; ++i)
				out.push_back(i < slots.size() ? slots[i] : KV_NO_SLOT);
		}
	}
	REQUIRE(out.size() <= size_t(n) * KV_TILE_WORDS);
	out.resize(size_t(n) * KV_TILE_WORDS, KV_NO_SLOT);
	return out;
}

double gated(Epilogue e, double g, double u) {
	if (e == Epilogue::SwiGLU) return g / (1 + std::exp(-g)) * u;
	g = std::min(g, 7.0);
	return g / (1 + std::exp(-1.702 * g)) * (std::clamp(u, -7.0, 7.0) + 1);
}

void run_experts(Backend& backend, const ExpertRow& e, const TestRow& row) {
	Random random(uint32_t(row.number) + 1);
	Rig rig(backend);
	const bool two = e.epilogue != Epilogue::None;
	const uint32_t slots = e.T * e.used, x_rows = e.by_slot ? slots : e.T, rows = e.n_experts * e.d;
	// Sums of a few units, so that clamping has an effect.
	const float size = e.epilogue == Epilogue::ClampedSwiGLU ? 5.f : 1.f;
	const Floats x = random.normals(size_t(x_rows) * e.n, size / std::sqrt(float(e.n)));
	const Words ids = random_ids(e, random);
	const View vx = rig.f32(x, x_rows, e.n), out = rig.out(e.T, e.used, e.d), none = rig.out(e.T, e.used, e.d);
	ExpertRows which{e.n_experts, rig.u32(ids, e.T, e.used)};
	if (!e.decode) {
		const uint32_t n = expert_tiles(slots, e.n_experts);
		which.tiles = rig.u32(Words(size_t(n) * KV_TILE_WORDS, 12345), n, KV_TILE_WORDS);
		backend.sort_slots(which.tiles, which.ids, e.n_experts);
		CHECK(rig.get_words(which.tiles) == tiles_reference(ids, e.n_experts));
	}
	std::vector<Proj> projs;
	std::vector<std::vector<double>> sums;
	for (uint32_t i = 0; i < (two ? 2u : 1u); ++i) {
		const DType type = i == 1 && e.second != DType{} ? e.second : e.type;
		const RandomWeight w = random_weight(type, rows, e.n, random);
		const Floats bias = e.bias ? random.normals(rows) : Floats();
		projs.push_back({i == 0 ? out : View(), rig.weight(type, w, rows, e.n), e.bias ? rig.f32(bias, rows) : View()});
		const Floats xs = rounded_x(backend, e.decode, type, x), ws = factors(backend, e.decode, w.values);
		std::vector<double> y(size_t(slots) * e.d);
		for (uint32_t s = 0; s < slots; ++s)
			for (uint32_t r = 0; r < e.d; ++r) {
				const size_t at = size_t(ids[s]) * e.d + r;
				double sum = e.bias ? double(bias[at]) : 0;
				for (uint32_t c = 0; c < e.n; ++c)
					sum += double(xs[size_t(e.by_slot ? s : s / e.used) * e.n + c]) * double(ws[at * e.n + c]);
				y[size_t(s) * e.d + r] = sum;
			}
		sums.push_back(std::move(y));
	}
	backend.expert_matmul(projs, vx, which, e.epilogue, e.decode);
	if (two)
		for (size_t i = 0; i < sums[0].size(); ++i) sums[0][i] = gated(e.epilogue, sums[0][i], sums[1][i]);
	const Floats result = rig.get(out);
	check_matmul(row, backend, e.decode, e.type, two, result, Floats(sums[0].begin(), sums[0].end()));
	if (two || e.bias || e.T > 40) return;
	// The bits are those of matmul() with the expert's weights, so they are the same whatever the other slots are.
	for (uint32_t s = 0; s < slots; s += 3) {
		View w = projs[0].w;
		w.at += size_t(ids[s]) * e.d * backend.weight_row_bytes(e.type, e.n);
		w.shape[0] = e.d;
		const Proj alone{kvrun::rows(view(*none.buf, none.at, DType::F32, slots, e.d), s, 1), w, {}};
		backend.matmul({&alone, 1}, kvrun::rows(vx, e.by_slot ? s : s / e.used, 1), Epilogue::None, e.decode);
		check_same_bits(row, rig.get(alone.out), std::span(result).subspan(size_t(s) * e.d, e.d));
	}
}

} // namespace

TEST_CASE("ops: route") {
	each_row(route_rows(), [](Backend& backend, const RouteRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		Floats logits = random.normals(size_t(r.T) * r.n_experts, 2);
		if (r.ties)
			for (float& x : logits) x = std::round(2 * x) / 2;
		const Floats bias = random.normals(r.n_experts, 0.2f), factors = random.normals(r.n_experts);
		const View ids = rig.u32(Words(size_t(r.T) * r.used, 12345), r.T, r.used), weights = rig.out(r.T, r.used);
		constexpr uint32_t kVocab = 50;
		Words table, tokens, named;
		for (uint32_t i = 0; i < kVocab && r.by_token; ++i) {
			const Words some = shuffled(r.n_experts, random);
			table.insert(table.end(), some.begin(), some.begin() + r.used);
		}
		for (uint32_t t = 0; t < r.T && r.by_token; ++t) {
			tokens.push_back(uint32_t(random.uniform(0, float(kVocab) - 0.01f)));
			const auto from = table.begin() + tokens.back() * r.used;
			named.insert(named.end(), from, from + r.used);
		}
		RouteArgs how{r.gating,
		              r.normalise,
		              r.scale,
		              r.bias ? rig.f32(bias, r.n_experts) : View(),
		              r.n_groups,
		              r.used_groups,
		              r.factors ? rig.f32(factors, r.n_experts) : View()};
		if (r.by_token) how.of_tokens = rig.u32(table, uint32_t(table.size())), how.tokens = rig.u32(tokens, r.T);
		backend.route(ids, weights, rig.f32(logits, r.T, r.n_experts), how);
		const Routed ref = route_reference(r, logits, bias, factors, named);
		CHECK(rig.get_words(ids) == ref.ids);
		check_close(row, rig.get(weights), ref.weights, "route");
	});
}

TEST_CASE("ops: route of logits that are not finite still chooses experts that are there") {
	for (TestDevice& d : test_devices()) {
		if (!d.backend) continue;
		INFO(d.name);
		for (const Gating g : {Gating::Softmax, Gating::Sigmoid, Gating::Near}) {
			Rig rig(*d.backend);
			constexpr uint32_t T = 5, n = 16, used = 6;
			Floats logits(T * n, 0.5f);
			for (uint32_t e = 0; e < n; ++e) logits[e] = NAN, logits[n + e] = -INFINITY, logits[2 * n + e] = INFINITY;
			logits[3 * n + 7] = NAN;
			const View ids = rig.u32(Words(T * used, 12345), T, used), weights = rig.out(T, used);
			d.backend->route(ids, weights, rig.f32(logits, T, n), {g, true, 1, {}});
			const Words got = rig.get_words(ids);
			for (uint32_t t = 0; t < T; ++t) {
				const std::set<uint32_t> chosen(got.begin() + t * used, got.begin() + (t + 1) * used);
				CHECK(chosen.size() == used);
				CHECK(*chosen.rbegin() < n);
			}
			CHECK(got[3 * used] == 7);
			CHECK(!std::isfinite(rig.get(weights)[3 * used])); // it cannot be mistaken for a result
			CHECK(std::isfinite(rig.get(weights)[4 * used]));
		}
	}
}

TEST_CASE("ops: sort_slots") {
	struct SortRow {
		uint32_t T, used, n_experts;
		bool skewed;
		std::string text() const {
			return fmt::format("sort_slots: T {} {} of {}{}", T, used, n_experts, skewed ? " skewed" : "");
		}
	};
	const std::vector<SortRow> rows = {
	    {1, 1, 1, false},  {2, 2, 8, false},    {64, 1, 1, false},   {65, 1, 1, false},    {300, 2, 8, false},
	    {300, 2, 8, true}, {33, 8, 128, false}, {512, 8, 128, true}, {90, 10, 512, false}, {700, 4, 60, false}};
	each_row(rows, [](Backend& backend, const SortRow& s, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		ExpertRow e{};
		e.T = s.T, e.used = s.used, e.n_experts = s.n_experts, e.skewed = s.skewed;
		const Words ids = random_ids(e, random);
		const uint32_t n = expert_tiles(s.T * s.used, s.n_experts);
		const View tiles = rig.u32(Words(size_t(n) * KV_TILE_WORDS, 12345), n, KV_TILE_WORDS);
		backend.sort_slots(tiles, rig.u32(ids, s.T, s.used), s.n_experts);
		CHECK(rig.get_words(tiles) == tiles_reference(ids, s.n_experts));
	});
}

TEST_CASE("ops: expert_matmul, on every kernel") {
	const std::vector<ExpertRow> rows = expert_rows();
	for (TestDevice& d : test_devices())
		for (size_t k = 0; k < caps_of(d.name).size(); ++k) {
			const char* caps = kCaps[k];
			if (!d.backend) continue;
			const CapsGuard guard(caps);
			const std::unique_ptr<Backend> own = *caps ? open_test_device(d.name) : nullptr;
			for (size_t i = 0; i < rows.size(); ++i) {
				if (!row_wanted(i) || (k && i % 4 != k)) continue; // every fourth row on the other kernels
				const TestRow row{d.name, i, rows[i].text() + (*caps ? fmt::format(" with {}", caps) : "")};
				INFO(row_text(row));
				run_experts(own ? *own : *d.backend, rows[i], row);
			}
		}
}

TEST_CASE("ops: experts larger than a binding go in pieces") {
	for (TestDevice& d : test_devices()) {
		if (!d.backend || has_own_caps()) continue;
		for (const char* caps : {"range=16777216,texel_range=16777216", "range=16777216,texel_range=0"}) {
			const CapsGuard guard(caps);
			const std::unique_ptr<Backend> backend = open_test_device(d.name);
			// 21 MiB; two of 10.5 MiB
			const ExpertRow rows[] = {{DType::F32, 3, 1024, 768, 7, 3, Epilogue::None, true, true, true},
			                          {DType::F32, 20, 1024, 384, 7, 3, Epilogue::SwiGLU, false, true},
			                          {DType::F32, 3, 1024, 384, 7, 3, Epilogue::ClampedSwiGLU, true, true}};
			for (size_t i = 0; i < std::size(rows); ++i) {
				if (!row_wanted(i)) continue;
				const TestRow row{d.name, i, rows[i].text() + " with " + caps};
				INFO(row_text(row));
				run_experts(*backend, rows[i], row);
			}
		}
	}
}

TEST_CASE("ops: expert_sum") {
	struct SumRow {
		uint32_t T, used, dim;
		std::string text() const { return fmt::format("expert_sum: T {} used {} dim {}", T, used, dim); }
	};
	const std::vector<SumRow> rows = {{1, 8, 2048}, {3, 1, 64}, {70, 4, 172}, {2, 32, 4}, {33000, 2, 8}};
	each_row(rows, [](Backend& backend, const SumRow& s, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const Floats x = random.normals(size_t(s.T) * s.dim), y = random.normals(size_t(s.T) * s.used * s.dim),
		             w = random.normals(size_t(s.T) * s.used);
		const View vx = rig.f32(x, s.T, s.dim);
		backend.expert_sum(vx, rig.f32(y, s.T, s.used, s.dim), rig.f32(w, s.T, s.used));
		Floats ref;
		for (uint32_t t = 0; t < s.T; ++t)
			for (uint32_t c = 0; c < s.dim; ++c) {
				double sum = double(x[size_t(t) * s.dim + c]);
				for (uint32_t j = 0; j < s.used; ++j) {
					const size_t slot = size_t(t) * s.used + j;
					sum += double(w[slot]) * double(y[slot * s.dim + c]);
				}
				ref.push_back(float(sum));
			}
		check_close(row, rig.get(vx), ref, "expert_sum");
	});
}
