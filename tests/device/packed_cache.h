// A cache of packed and f16 pages with random codes and parameters, attention to it in double, and a comparison of a
// device's attention with that.
#pragma once
#include "engine/kv_host/quant.h"
#include "shared/kv_page.h"
#include "shared/push.h"
#include "tests/support/compare.h"
#include "tests/support/kv_tables.h"
#include "tests/support/rig.h"
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <limits>
#include <numeric>

namespace kvrun {

constexpr uint32_t kGarbage = 0x7e01fe02u; // two NaN as halves
constexpr uint32_t kBalanceAt = 4;         // word where the balancer begins

struct TierSpec {
	Format format;
	uint32_t page, n;   // tokens per page, live tokens
	bool block = false; // K per channel: parameters in a block shared by several pages
};
struct Shape {
	uint32_t T, n_heads, n_kv_heads, D;
	uint32_t splits;
	bool per_head = false;   // a live mask per kv head
	bool own_caches = false; // every row has pages of its own
	uint32_t item_rows = 1;  // rows of a work item
	bool prompt = false;     // rows are prompt rows, and also see the prompt's tokens
	float softcap = 0;       // as in Softmax
	bool sinks = false;      // every head has one
	uint32_t spread = 1;     // so many times the pages that the tokens need; more than 1: AttendGroup::sparse
};
struct PackedRow {
	Shape s;
	std::vector<TierSpec> tiers;
	std::string text() const {
		std::string r =
		    fmt::format("attend: T {} heads {}:{} head_dim {}, {} splits{}{}{}{}{}{}", s.T, s.n_heads, s.n_kv_heads,
		                s.D, s.splits, s.per_head ? ", live per head" : "", s.own_caches ? ", own caches" : "",
		                s.item_rows > 1 ? fmt::format(", {} rows together", s.item_rows) : "",
		                s.softcap > 0 ? fmt::format(", softcap {}", s.softcap) : "", s.sinks ? ", sinks" : "",
		                s.spread > 1 ? fmt::format(", few live in {} times the pages", s.spread) : "");
		const auto quant = [](const Quant& q) {
			return fmt::format("{}{}{}", q.bits,
			                   q.bits == 16                   ? ""
			                   : q.scale == Scale::PerChannel ? "c"
			                                                  : fmt::format("t{}", q.group),
			                   q.prescale == Prescale::SqrtMax   ? " sqrtmax"
			                   : q.prescale == Prescale::Balance ? " balance"
			                   : q.param_bits == 8               ? " bytes"
			                                                     : "");
		};
		for (const TierSpec& t : tiers)
			r += fmt::format("; {} tokens in pages of {}, K {} V {}{}", t.n, t.page, quant(t.format.k),
			                 quant(t.format.v), t.block ? " block" : "");
		return r;
	}
};

struct Token { // of one kv head, dequantised
	std::vector<double> k, v;
};
struct PackedCache {
	std::vector<AttendGroup> groups;
	KvRead kv;
	uint32_t most_parts = 0; // for kv: 0 if a row has no parts, or has one that is not of the cache
	std::vector<std::vector<std::vector<Token>>> tokens; // [cache][kv head][i]
	std::vector<std::vector<Token>> own;                 // [kv head][row], of a prompt
	Floats balance;                                      // (n_kv_heads, D), as halves
	Floats sinks;                                        // (n_heads), or none
};

// Fills one pool with pages and records their places.
class Builder {
 public:
	Builder(const PackedRow& r, Random& random) : r_(r), s_(r.s), random_(random) {}

	void build(PackedCache& c, Rig& rig) {
		c.balance.resize(size_t(s_.n_kv_heads) * s_.D);
		for (float& b : c.balance) b = round_f16(random_.uniform(0.3f, 3.f));
		const uint32_t n_caches = s_.own_caches ? s_.T : 1;
		c.tokens.assign(n_caches, std::vector<std::vector<Token>>(s_.n_kv_heads));
		std::vector<std::pair<uint32_t, uint32_t>> runs; // [tier * n_caches + cache] first page, pages
		for (const TierSpec& t : r_.tiers)
			for (uint32_t i = 0; i < n_caches; ++i) {
				const uint32_t first = uint32_t(pages_.size() / 4);
				const uint32_t n = s_.own_caches ? t.n + 7 * i : t.n; // rows differ in length
				add_tier(t, n, c.tokens[i]);
				runs.push_back({first, uint32_t(pages_.size() / 4) - first});
			}
		finish(c, rig, runs, n_caches);
	}

 private:
	uint32_t take(uint32_t words) { // a section of the pool, at a multiple of 4 words, with some garbage before it
		pool_.resize((pool_.size() + 3) / 4 * 4 + 4 * random_.below(3), kGarbage);
		const uint32_t at = uint32_t(pool_.size());
		pool_.resize(pool_.size() + words, kGarbage);
		return at;
	}
	float scale(uint32_t bits) { return round_f16(random_.uniform(0.5f, 1.5f) * 2 / float((1u << bits) - 1)); }
	uint32_t put(float scale, float zero) { return f32_to_f16(scale) | uint32_t(f32_to_f16(zero)) << 16; }
	void params(uint32_t at, uint32_t bits) { pool_[at] = put(scale(bits), round_f16(-1 + 0.4f * random_.normal())); }
	// Bytes for the n parameters of a page, and the largest values that they are relative to.
	void byte_params(uint32_t at, uint32_t n, uint32_t bits) {
		for (uint32_t i = 0; i < n / 2; ++i)
			pool_[at + i] =
			    random_.below(256) | random_.below(256) << 8 | random_.below(256) << 16 | random_.below(256) << 24;
		for (uint32_t h = 0; h < s_.n_kv_heads; ++h) pool_[at + n / 2 + h] = put(scale(bits), round_f16(1.5f));
	}
	// Scale and zero point of group i of kv head h, as written by byte_params().
	std::pair<double, double> byte_meaning(uint32_t at, uint32_t n, uint32_t h, uint32_t i) const {
		const uint32_t pair = pool_[at + i / 2] >> i % 2 * 16, largest = at + n / 2 + h;
		return {(pair & 255) * low(largest) / 255, (int(pair >> 8 & 255) - 128) * high(largest) / 127};
	}
	double low(uint32_t at) const { return double(f16_to_f32(uint16_t(pool_[at]))); }
	double high(uint32_t at) const { return double(f16_to_f32(uint16_t(pool_[at] >> 16))); }

	void add_tier(const TierSpec& t, uint32_t n, std::vector<std::vector<Token>>& out) {
		const uint32_t H = s_.n_kv_heads, D = s_.D, n_pages = (n ? (n + t.page - 1) / t.page + (n > 3) : 0) * s_.spread;
		const Quant &k = t.format.k, &v = t.format.v;
		const bool channel = k.bits < 16 && k.scale == Scale::PerChannel;
		uint32_t block = 0, factors = 0;
		std::vector<std::vector<uint32_t>> slots(H); // live slots of each kv head
		for (uint32_t h = 0; h < H; ++h) {
			if (h && !s_.per_head) {
				slots[h] = slots[0];
				continue;
			}
			std::vector<uint32_t> all(n_pages * t.page);
			std::iota(all.begin(), all.end(), 0u);
			for (uint32_t i = uint32_t(all.size()); i > 1; --i) std::swap(all[i - 1], all[random_.below(i)]);
			slots[h].assign(all.begin(), all.begin() + n);
		}
		for (uint32_t p = 0; p < n_pages; ++p) {
			if (p % 2 == 0) { // pages 2 i and 2 i + 1 were compressed together
				block = take(kv_channel_param_words(H, D));
				if (channel && t.block)
					for (uint32_t i = 0; i < H * D; ++i) params(block + i, k.bits);
				factors = take(kv_factor_words(H, D));
				for (uint32_t i = 0; i < H * D / 2; ++i)
					pool_[factors + i] = put(random_.uniform(0.4f, 2.f), random_.uniform(0.4f, 2.f));
			}
			const uint32_t k_at = take(kv_code_words(H, D, k.bits, t.page)),
			               v_at = take(kv_code_words(H, D, v.bits, t.page));
			uint32_t k_par = block;
			if (k.bits < 16 && !t.block) k_par = take(page_param_words(k, H, D, t.page));
			if (channel && !t.block && k.param_bits == 8)
				byte_params(k_par, n_params(k, t.page), k.bits);
			else if (channel && !t.block)
				for (uint32_t i = 0; i < H * D; ++i) params(k_par + i, k.bits);
			const uint32_t v_par = v.bits < 16 ? take(page_param_words(v, H, D, t.page)) : 0;
			if (v.param_bits == 8) byte_params(v_par, n_params(v, t.page), v.bits);
			pages_.insert(pages_.end(), {k_at, v_at, k_par, v_par});
			factors_.push_back(factors);
			live_.resize(live_.size() + (s_.per_head ? H : 1) * 4, 0); // [page][head][4], transposed later
			for (uint32_t h = 0; h < H; ++h)
				for (uint32_t slot : slots[h])
					if (slot / t.page == p)
						out[h].push_back(add_token(t, h, slot % t.page, k_at, v_at, k_par, v_par, factors));
		}
	}

	Token add_token(const TierSpec& t, uint32_t h, uint32_t i, uint32_t k_at, uint32_t v_at, uint32_t k_par,
	                uint32_t v_par, uint32_t factors) {
		const uint32_t D = s_.D;
		const Quant &k = t.format.k, &v = t.format.v;
		live_[live_.size() - (s_.per_head ? s_.n_kv_heads - h : 1) * 4 + i / 32] |= 1u << i % 32;
		Token token{std::vector<double>(D), std::vector<double>(D)};
		for (uint32_t c = 0; c < D; ++c) {
			token.k[c] = element(k, k_par, t.page, h, i, c, k_at + kv_k_word(h, c * k.bits / 32, i, D, k.bits, t.page));
			token.v[c] = element(v, v_par, t.page, h, i, c, v_at + kv_v_word(h, i, c * v.bits / 32, D, v.bits, t.page));
			if (v.prescale == Prescale::SqrtMax) {
				const uint32_t w = factors + kv_factor_word(h, c, D);
				token.v[c] *= kv_factor_half(h, c, D) ? high(w) : low(w);
			}
		}
		return token;
	}
	uint32_t n_params(const Quant& q, uint32_t page) const {
		return q.scale == Scale::PerChannel ? kv_channel_param_words(s_.n_kv_heads, s_.D)
		                                    : kv_token_param_words(s_.n_kv_heads, s_.D, q.group, page);
	}
	// Gives channel c of token i of kv head h a random code (or half) in `word` and returns its decoded value.
	double element(const Quant& q, uint32_t params_at, uint32_t page, uint32_t h, uint32_t i, uint32_t c,
	               uint32_t word) {
		const uint32_t shift = c * q.bits % 32, mask = (q.bits == 32 ? 0 : 1u << q.bits) - 1;
		if (q.bits == 16) {
			const float x = round_f16(random_.normal());
			pool_[word] = (pool_[word] & ~(mask << shift)) | uint32_t(f32_to_f16(x)) << shift;
			return double(x);
		}
		const bool channel = q.scale == Scale::PerChannel;
		const uint32_t at = channel ? kv_channel_param(h, c, s_.D) : kv_token_param(h, c, i, s_.D, q.group, page);
		const uint32_t code = random_.below(1u << q.bits);
		pool_[word] = (pool_[word] & ~(mask << shift)) | code << shift;
		if (q.param_bits == 8) {
			const auto [scale, zero] = byte_meaning(params_at, n_params(q, page), h, at);
			return code * scale + zero;
		}
		if (!channel && pool_[params_at + at] == kGarbage) params(params_at + at, q.bits);
		return code * low(params_at + at) + high(params_at + at);
	}

	void finish(PackedCache& c, Rig& rig, const std::vector<std::pair<uint32_t, uint32_t>>& runs, uint32_t n_caches) {
		const uint32_t n_pages = uint32_t(pages_.size() / 4), masks = s_.per_head ? s_.n_kv_heads : 1;
		Words live(size_t(masks) * n_pages * 4);
		for (uint32_t p = 0; p < n_pages; ++p)
			for (uint32_t h = 0; h < masks; ++h)
				for (uint32_t w = 0; w < 4; ++w)
					live[(size_t(h) * n_pages + p) * 4 + w] = live_[(size_t(p) * masks + h) * 4 + w];
		const KvTables tables(rig, pages_, live, factors_);
		std::vector<AttendWork> work;
		std::vector<uint32_t> n_parts(s_.T, 0);
		const uint32_t own = s_.prompt ? 1 : 0, most = uint32_t(r_.tiers.size()) * s_.splits + own; // parts of a row
		for (size_t t = 0; t < r_.tiers.size(); ++t) {
			const uint32_t first_work = uint32_t(work.size());
			for (uint32_t row = 0; row < s_.T; ++row) {
				const auto [first, n] = runs[t * n_caches + (s_.own_caches ? row : 0)];
				const uint32_t splits = std::min(s_.splits, n);
				for (uint32_t i = 0; i < splits; ++i) {
					const uint32_t a = n * i / splits, b = n * (i + 1) / splits, part = row * most + n_parts[row]++;
					if (row % s_.item_rows == 0) work.push_back(tables.item(row, part, first + a, b - a, kBalanceAt));
				}
			}
			AttendGroup g;
			g.format = r_.tiers[t].format, g.page = r_.tiers[t].page, g.sparse = s_.spread > 1;
			g.first_work = first_work, g.n_work = uint32_t(work.size()) - first_work;
			if (g.n_work) c.groups.push_back(g);
		}
		Words row_parts;
		for (uint32_t row = 0; row < s_.T; ++row) row_parts.insert(row_parts.end(), {row * most, n_parts[row] + own});
		if (!own && s_.item_rows == 1 && *std::ranges::min_element(n_parts))
			c.most_parts = *std::ranges::max_element(n_parts);
		pool_.resize((pool_.size() + 7) / 4 * 4, kGarbage);
		const View pool = rig.u32(pool_, uint32_t(pool_.size()));
		for (AttendGroup& g : c.groups) {
			g.k_codes = g.v_codes = pool;
			if (g.format.k.bits < 16) g.k_params = pool;
			if (g.format.v.bits < 16) g.v_params = pool;
			if (g.format.v.prescale == Prescale::SqrtMax) g.v_factors = pool;
		}
		c.kv.groups = c.groups;
		c.kv.n_kv_heads = s_.n_kv_heads, c.kv.item_rows = s_.item_rows, c.kv.part_step = most;
		c.kv.work = upload_work(rig, work), c.kv.tables = tables.view;
		c.kv.row_parts = rig.u32(row_parts, s_.T, 2), c.kv.parts = rig.out(s_.T * most, s_.n_heads, s_.D + 2);
		if (std::ranges::none_of(c.groups,
		                         [](const AttendGroup& g) { return g.format.k.prescale == Prescale::Balance; }))
			return;
		Floats balance(kBalanceAt * 2, NAN); // the balancer of another layer
		balance.insert(balance.end(), c.balance.begin(), c.balance.end());
		c.kv.balance = as_words(rig.f16(balance, uint32_t(balance.size())));
	}

	const PackedRow& r_;
	const Shape& s_;
	Random& random_;
	Words pool_, pages_, live_, factors_;
};

inline bool balanced(const PackedRow& r) {
	return std::ranges::any_of(r.tiers, [](const TierSpec& t) { return t.format.k.prescale == Prescale::Balance; });
}

// The prompt's own keys and values. The reference divides queries by the balance, so these keys are multiplied by it.
inline KvRows make_own(PackedCache& c, Rig& rig, const PackedRow& r, Random& random) {
	const Shape& s = r.s;
	Floats k = random.normals(size_t(s.n_kv_heads) * s.T * s.D), v = random.normals(k.size());
	c.own.assign(s.n_kv_heads, std::vector<Token>(s.T));
	for (size_t i = 0; i < k.size(); ++i) {
		k[i] = round_f16(k[i]), v[i] = round_f16(v[i]);
		const size_t h = i / s.D / s.T;
		Token& t = c.own[h][i / s.D % s.T];
		t.k.push_back(double(k[i]) * (balanced(r) ? double(c.balance[h * s.D + i % s.D]) : 1));
		t.v.push_back(double(v[i]));
	}
	return {rig.f16(k, s.n_kv_heads, s.T, s.D), rig.f16(v, s.n_kv_heads, s.T, s.D), 0};
}

// A score before softmax: q . k scaled, then cap * tanh(score / cap).
inline double softcapped(const Shape& s, double dot) {
	const double score = dot / std::sqrt(double(s.D));
	return s.softcap > 0 ? double(s.softcap) * std::tanh(score / double(s.softcap)) : score;
}

// Balanced keys are multiplied by divided queries, per tier: a token's share of the score is sum_c (q_c / b_c) k_c.
inline void reference(const PackedRow& r, const PackedCache& c, const Floats& q, Floats& want, Floats& lse) {
	const Shape& s = r.s;
	const bool divided = balanced(r);
	for (uint32_t row = 0; row < s.T; ++row)
		for (uint32_t head = 0; head < s.n_heads; ++head) {
			const uint32_t h = head / (s.n_heads / s.n_kv_heads);
			std::vector<Token> tokens = c.tokens[s.own_caches ? row : 0][h];
			if (s.prompt) tokens.insert(tokens.end(), c.own[h].begin(), c.own[h].begin() + row + 1);
			const float* x = &q[(size_t(row) * s.n_heads + head) * s.D];
			std::vector<double> score, y(s.D);
			for (const Token& t : tokens) {
				double dot = 0;
				for (uint32_t i = 0; i < s.D; ++i)
					dot += double(x[i]) / (divided ? double(c.balance[size_t(h) * s.D + i]) : 1) * t.k[i];
				score.push_back(softcapped(s, dot));
			}
			const double sink = s.sinks ? double(c.sinks[head]) : 0;
			double top = score.empty() ? sink : *std::ranges::max_element(score);
			if (s.sinks) top = std::max(top, sink);
			double sum = s.sinks ? std::exp(sink - top) : 0;
			for (size_t t = 0; t < tokens.size(); ++t) {
				const double w = std::exp(score[t] - top);
				sum += w;
				for (uint32_t i = 0; i < s.D; ++i) y[i] += w * tokens[t].v[i];
			}
			lse.push_back(sum > 0 ? float(top + std::log(sum)) : -std::numeric_limits<float>::infinity());
			for (uint32_t i = 0; i < s.D; ++i)
				want[(size_t(row) * s.n_heads + head) * s.D + i] = sum > 0 ? float(y[i] / sum) : 0;
		}
}

// DeviceInfo::int8_attend: rounding a query to 8 bits changes scores, and so weights, by up to 1.2 % (rms); rounding
// weights changes the sum by 0.31 %; rounding a query to 16 bits has no visible effect. Tighter than the tolerance of
// single elements.
inline void check_rounding(const PackedRow& r, const TestRow& row, std::span<const float> x,
                           std::span<const float> ref) {
	const auto bytes = [](const Quant& q) { return q.bits < 4 || (q.bits == 4 && q.scale != Scale::Codebook); };
	double allowed = 2e-4, errors = 0, squares = 0;
	for (const TierSpec& t : r.tiers) {
		if (t.format.k.bits < 4) allowed = std::max(allowed, 1.2e-2);
		if (bytes(t.format.v)) allowed = std::max(allowed, 3.3e-3);
	}
	for (size_t i = 0; i < ref.size(); ++i) {
		errors += (double(x[i]) - ref[i]) * (double(x[i]) - ref[i]);
		squares += double(ref[i]) * ref[i];
	}
	CHECK_MESSAGE(errors <= allowed * allowed * squares,
	              row_text(row) << "\nrelative error " << std::sqrt(errors / squares) << ", allowed " << allowed);
}

inline void run_packed(Backend& backend, const PackedRow& r, const TestRow& row) {
	Random random(uint32_t(row.number) + 1);
	Rig rig(backend);
	const Floats q = random.normals(size_t(r.s.T) * r.s.n_heads * r.s.D, 1.f);
	PackedCache c;
	Builder(r, random).build(c, rig);
	KvRows own = r.s.prompt ? make_own(c, rig, r, random) : KvRows{};
	Softmax softmax{.softcap = r.s.softcap};
	if (r.s.sinks) {
		for (uint32_t i = 0; i < r.s.n_heads; ++i) c.sinks.push_back(i == 0 ? 120.f : random.uniform(-2.f, 4.f));
		softmax.sinks = rig.f32(c.sinks, r.s.n_heads);
	}
	c.kv.softmax = own.softmax = softmax;
	Floats want(q.size()), want_lse;
	reference(r, c, q, want, want_lse);
	const View out_lse = rig.out(r.s.T, r.s.n_heads);
	const View out = rig.out(r.s.T, r.s.n_heads, r.s.D), vq = rig.f32(q, r.s.T, r.s.n_heads, r.s.D);
	const auto run = [&](const View& to) {
		r.s.prompt ? backend.attend_prompt(to, out_lse, vq, own, &c.kv) : backend.attend(to, out_lse, vq, c.kv);
	};
	run(out);
	const Floats got = rig.get(out);
	const std::string_view allowed = attend_tolerance(backend.info(), r.s.prompt, /*packed=*/true, "attend packed");
	check_close(row, got, want, allowed);
	if (backend.info().int8_attend && !r.s.prompt) check_rounding(r, row, got, want);
	check_same_bits(row, rig.get(vq), q);
	const Floats lse = rig.get(out_lse);
	if (std::isinf(want_lse[0]))
		CHECK_MESSAGE(lse == want_lse, row_text(row)); // no token at all, in any row
	else
		check_close(row, lse, want_lse, allowed);
	const View again = rig.out(r.s.T, r.s.n_heads, r.s.D); // the same bits every time
	run(again);
	check_same_bits(row, rig.get(again), got);
	if (r.s.prompt) return;
	// The device may merge few states without another dispatch; the bits must be the same.
	c.kv.most_parts = c.most_parts;
	const View merged = rig.out(r.s.T, r.s.n_heads, r.s.D);
	backend.time_ops(true);
	backend.op_times(/*reset=*/true);
	backend.attend(merged, {}, vq, c.kv);
	check_same_bits(row, rig.get(merged), got);
	const auto merges = [](const std::string& kernel) { return kernel.starts_with("attend_merge"); };
	for (const OpTime& t : backend.op_times(/*reset=*/true)) {
		const bool few = c.most_parts && c.most_parts <= MERGE_FEW && backend.info().merges_few;
		if (t.op == "attend" && !t.kernels.empty())
			CHECK_MESSAGE(std::ranges::any_of(t.kernels, merges) == !few, row_text(row));
	}
	backend.time_ops(false);
}

inline Quant channel(uint8_t bits) { return {.bits = bits, .scale = Scale::PerChannel, .group = 32}; }
inline Quant bytes(Quant q) {
	q.param_bits = 8;
	return q;
}
inline Quant token(uint8_t bits, uint32_t group, Prescale prescale = Prescale::None) {
	return {.bits = bits, .scale = Scale::PerToken, .group = uint16_t(group), .prescale = prescale};
}
inline constexpr Quant kF16 = {};

inline constexpr uint32_t kHeads[][2] = {{2, 2}, {8, 2}, {8, 1}, {6, 2}}; // 1, 4, 8, 3 query heads per kv head
inline constexpr uint32_t kTokens[] = {1, 33, 16, 70, 32, 31, 97}, kPages[] = {32, 64, 128};

} // namespace kvrun
