// kv_pack, kv_block and attention over packed pages on every device: parameters and codes against the rules of the
// methods written down again here, attention against dequantise-then-attend in double; scores and channel maxima.
#include "shared/kv_page.h"
#include "tests/compare.h"
#include "tests/rig.h"
#include <cmath>
#include <doctest/doctest.h>
#include <numeric>

using namespace kvrun;

namespace {

struct PackRow {
	const char* name;
	Quant k, v;
	uint32_t n_heads, n_kv_heads, D, page, n; // n: tokens packed together
	bool k_block = false;                     // K's parameters over all n tokens; always so for SqrtMax's factors
	bool per_head = false;                    // every kv head packs its own tokens
	std::string text() const {
		const auto side = [](const Quant& q) {
			return fmt::format("{} bits {} group {}{}{}", q.bits, q.scale == Scale::PerChannel ? "per channel" : "per token", q.group,
							   q.norm == Norm::SqrtMax ? " sqrt-max" : q.norm == Norm::Balance ? " balanced" : "", q.relax ? " relaxed" : "");
		};
		return fmt::format("pack {}: K {}, V {}, heads {}:{} head_dim {} page {} tokens {}{}{}", name, side(k), side(v), n_heads, n_kv_heads, D, page, n,
						   k_block ? " block" : "", per_head ? " per head" : "");
	}
};

constexpr Quant channel(uint8_t bits, uint16_t group, float relax = 0) { return {bits, Scale::PerChannel, group, Norm::None, relax}; }
constexpr Quant token(uint8_t bits, uint16_t group, Norm norm = Norm::None, float relax = 0) { return {bits, Scale::PerToken, group, norm, relax}; }

std::vector<PackRow> pack_rows() {
	return {
		{"kivi2", channel(2, 32), token(2, 32), 8, 2, 64, 32, 64},
		{"kivi1", channel(1, 64), token(1, 64), 4, 4, 64, 64, 64},
		{"kivi4", channel(4, 128), token(4, 32), 8, 1, 128, 128, 256},
		{"kivi4 small heads", channel(4, 32), token(4, 8), 4, 2, 8, 32, 64},
		{"rtn8", token(8, 32), token(8, 32), 3, 1, 96, 32, 45},
		{"rtn2", token(2, 80), token(2, 80), 8, 2, 80, 64, 100},
		{"rtn1", token(1, 96), token(1, 32), 4, 1, 96, 128, 130},
		{"mixed bits", channel(4, 32), token(1, 64), 4, 2, 64, 32, 96},
		{"f16 keys", {}, token(2, 64), 4, 2, 64, 32, 33},
		{"all heads in one run", token(4, 128), token(2, 128), 4, 2, 64, 32, 70},
		{"xquant", channel(2, 64, 0.045f), token(1, 32, Norm::None, 1.f / 6), 4, 2, 64, 64, 128},
		{"zipcache", channel(2, kGroupAll), token(2, 128, Norm::SqrtMax), 4, 2, 64, 32, 75, true},
		{"zipcache 4", channel(4, kGroupAll), token(4, 640, Norm::SqrtMax), 8, 8, 80, 64, 100, true},
		{"mikv", token(2, 32, Norm::Balance), token(2, 32), 8, 2, 64, 32, 50, false, true},
		{"mikv 8", token(8, 64, Norm::Balance), token(8, 64), 4, 1, 128, 64, 64, false, true},
		{"kivi2 per head", channel(2, 32), token(2, 32), 4, 4, 64, 32, 96, false, true},
	};
}

float f16_of(const Words& words, size_t i) { return f16_to_f32(uint16_t(words[i / 2] >> i % 2 * 16)); }

// Scale and zero of a group as METHODS' rule 1 has them: rounded to f16 before the codes are computed.
struct Group {
	float scale, zero;       // codes are against these
	float d_scale, d_zero;   // and mean these: XQuant's relaxation moves the ends inwards
};
Group group_of(const Floats& x, const Quant& q) {
	const auto [lo, hi] = std::minmax_element(x.begin(), x.end());
	const float top = float((1 << q.bits) - 1);
	Group g;
	g.scale = round_f16((*hi - *lo) / top), g.zero = round_f16(*lo);
	g.d_zero = round_f16(g.zero + float(q.relax) * g.scale * top), g.d_scale = round_f16((1 - 2 * float(q.relax)) * g.scale);
	return g;
}

// Tokens of one side in pages, as the test expects and as a device packed them.
struct Side {
	Quant q;
	bool is_k;
	uint32_t n_kv, D, page, n;
	Floats x;                    // (n, n_kv, D) halves, what is packed
	Words codes, params, block;  // pool memory after the op; block: K's parameters, V's channel factors
	Words code_at, param_at;     // word offset of each page
	Words slot;                  // (n_kv, n) slot of token t: page index * page + index
	Floats balance;              // (n_kv, D), K with Norm::Balance
	uint32_t code(uint32_t h, uint32_t t, uint32_t c) const {
		const uint32_t s = slot[h * n + t], p = s / page, i = s % page, per = 32 / q.bits;
		const uint32_t at = code_at[p] + (is_k ? kv_k_word(h, c / per, i, D, q.bits, page) : kv_v_word(h, i, c / per, D, q.bits, page));
		return codes[at] >> c % per * q.bits & ((q.bits == 16 ? 0x10000u : 1u << q.bits) - 1);
	}
	uint32_t param(uint32_t h, uint32_t t, uint32_t c) const {
		const uint32_t s = slot[h * n + t];
		if (q.scale == Scale::PerToken) return params[param_at[s / page] + kv_token_param(h, c, s % page, D, q.group, page)];
		return block.empty() ? params[param_at[s / page] + kv_channel_param(h, c, D)] : block[kv_channel_param(h, c, D)];
	}
	float factor(uint32_t h, uint32_t c) const { return q.norm == Norm::SqrtMax ? f16_of(block, kv_factor_word(h, c, D) * 2 + kv_factor_half(h, c, D)) : 1.f; }
	float value(uint32_t h, uint32_t t, uint32_t c) const { // what attention must see
		if (q.bits == 16) return f16_to_f32(uint16_t(code(h, t, c)));
		const uint32_t p = param(h, t, c);
		const float y = float(code(h, t, c)) * f16_to_f32(uint16_t(p)) + f16_to_f32(uint16_t(p >> 16));
		return q.norm == Norm::SqrtMax ? y * factor(h, c) : q.norm == Norm::Balance ? y / balance[h * D + c] : y;
	}
	// The number that is quantised.
	float input(uint32_t h, uint32_t t, uint32_t c) const {
		const float v = x[(t * n_kv + h) * D + c];
		return q.norm == Norm::SqrtMax ? v / factor(h, c) : q.norm == Norm::Balance ? v * balance[h * D + c] : v;
	}
};

// Every code and parameter of a side is the one its group asks for. A value between two codes may take either; a
// parameter may be a unit in the last place of f16 off, as a device may divide.
void check_side(const TestRow& row, const Side& s) {
	if (s.q.bits == 16) return;
	size_t bad = 0, total = 0;
	std::string first;
	const auto check_group = [&](const Floats& x, const std::vector<std::array<uint32_t, 3>>& who) { // head, token, channel
		const Group g = group_of(x, s.q);
		for (size_t i = 0; i < x.size(); ++i, ++total) {
			const auto [h, t, c] = who[i];
			const uint32_t p = s.param(h, t, c), code = s.code(h, t, c);
			const float scale = f16_to_f32(uint16_t(p)), zero = f16_to_f32(uint16_t(p >> 16));
			const float exact = g.scale > 0 ? std::clamp((x[i] - g.zero) / g.scale, 0.f, float((1 << s.q.bits) - 1)) : 0.f;
			const bool ok = std::abs(float(code) - exact) <= 0.5f + 0.01f && std::abs(scale - g.d_scale) <= 1e-3f * std::abs(g.d_scale) &&
							std::abs(zero - g.d_zero) <= 1e-3f * std::abs(g.d_zero) + 1e-3f * g.scale;
			if (!ok && bad++ == 0)
				first = fmt::format("head {} token {} channel {}: code {} of {}, scale {} of {}, zero {} of {}", h, t, c, code, exact, scale, g.d_scale, zero, g.d_zero);
		}
	};
	for (uint32_t h = 0; h < s.n_kv; ++h) {
		if (s.q.scale == Scale::PerChannel) { // groups: the tokens of a page, or all of them
			const uint32_t run = s.block.empty() ? s.page : s.n;
			for (uint32_t c = 0; c < s.D; ++c)
				for (uint32_t t0 = 0; t0 < s.n; t0 += run) {
					Floats x;
					std::vector<std::array<uint32_t, 3>> who;
					for (uint32_t t = t0; t < t0 + run; ++t) x.push_back(s.input(h, t, c)), who.push_back({h, t, c});
					check_group(x, who);
				}
			continue;
		}
		if (h * s.D % s.q.group) continue; // the run began in a head before
		for (uint32_t t = 0; t < s.n; ++t)
			for (uint32_t c0 = 0; c0 < std::max<uint32_t>(s.D, s.q.group); c0 += s.q.group) {
				Floats x;
				std::vector<std::array<uint32_t, 3>> who;
				for (uint32_t i = c0; i < c0 + s.q.group; ++i) x.push_back(s.input(h + i / s.D, t, i % s.D)), who.push_back({h + i / s.D, t, i % s.D});
				check_group(x, who);
			}
	}
	if (bad || total != size_t(s.n_kv) * s.n * s.D)
		FAIL_CHECK(row_text(row) << "\n" << (s.is_k ? "K: " : "V: ") << bad << " of " << total << " codes are wrong, first " << first);
	else CHECK(bad == 0);
}

constexpr uint32_t kPrompt = 300; // rows of the source; the packed tokens are some of them

struct Packed {
	Side k, v;
	View src_k, src_v, k_codes, v_codes, k_params, v_params, block, pages, live, factors, balance;
	uint32_t n_pages;
};

// A pool for n_pages pages of `words` each, in shuffled order with room between.
Words page_places(uint32_t n_pages, uint32_t words, Random& random) {
	Words r(n_pages);
	std::iota(r.begin(), r.end(), 0u);
	for (uint32_t i = n_pages; i > 1; --i) std::swap(r[i - 1], r[random.below(i)]);
	for (uint32_t& p : r) p = p * (words + 4) + 4;
	return r;
}

void pack_on(Rig& rig, const PackRow& r, Random& random, Packed& p) {
	const uint32_t n_kv = r.n_kv_heads, D = r.D, page = r.page;
	p.n_pages = (r.n + page - 1) / page;
	Floats k(size_t(n_kv) * kPrompt * D), v(k.size());
	for (size_t i = 0; i < k.size(); ++i) {
		const uint32_t c = uint32_t(i % D);
		k[i] = round_f16(random.normal() * (c % 13 == 5 ? 6.f : 1.f) + (c % 7 == 3 ? 2.f : 0.f)); // outlier channels, offsets
		v[i] = round_f16(random.normal() * (c % 11 == 2 ? 4.f : 1.f));
	}
	p.src_k = rig.f16(k, n_kv, kPrompt, D), p.src_v = rig.f16(v, n_kv, kPrompt, D);
	// every kv head with its own token set packs other rows, in other slots
	const uint32_t sets = r.per_head ? n_kv : 1;
	Words sources, k_work, live(size_t(sets) * p.n_pages * 4, 0);
	p.k = {r.k, true, n_kv, D, page, r.n, Floats(size_t(r.n) * n_kv * D), {}, {}, {}, {}, {}, Words(n_kv * r.n), {}};
	p.v = {r.v, false, n_kv, D, page, r.n, Floats(size_t(r.n) * n_kv * D), {}, {}, {}, {}, {}, Words(n_kv * r.n), {}};
	const auto param_words = [&](const Quant& q) {
		return q.bits == 16 ? 0 : q.scale == Scale::PerChannel ? kv_channel_param_words(n_kv, D) : kv_token_param_words(n_kv, D, q.group, page);
	};
	p.k.code_at = page_places(p.n_pages, kv_code_words(n_kv, D, r.k.bits, page), random), p.v.code_at = page_places(p.n_pages, kv_code_words(n_kv, D, r.v.bits, page), random);
	p.k.param_at = page_places(p.n_pages, param_words(r.k), random), p.v.param_at = page_places(p.n_pages, param_words(r.v), random);
	const uint32_t block_k = r.k_block ? 8 : kSkip, block_v = r.v.norm == Norm::SqrtMax ? 16 + kv_channel_param_words(n_kv, D) : kSkip;
	for (uint32_t set = 0; set < sets; ++set) {
		Words rows(kPrompt);
		std::iota(rows.begin(), rows.end(), 0u);
		for (uint32_t i = kPrompt; i > 1; --i) std::swap(rows[i - 1], rows[random.below(i)]);
		for (uint32_t t = 0; t < r.n; ++t) {
			live[(set * p.n_pages + t / page) * 4 + t % page / 32] |= 1u << t % 32;
			for (uint32_t h = r.per_head ? set : 0; h < (r.per_head ? set + 1 : n_kv); ++h) {
				p.k.slot[h * r.n + t] = p.v.slot[h * r.n + t] = t;
				for (uint32_t c = 0; c < D; ++c) {
					p.k.x[(t * n_kv + h) * D + c] = k[(size_t(h) * kPrompt + rows[t]) * D + c];
					p.v.x[(t * n_kv + h) * D + c] = v[(size_t(h) * kPrompt + rows[t]) * D + c];
				}
			}
		}
		const uint32_t first = uint32_t(sources.size());
		sources.insert(sources.end(), rows.begin(), rows.begin() + r.n);
		const bool whole = r.k.scale == Scale::PerChannel && !r.k_block && r.k.bits != 16;
		for (uint32_t t = 0; t < r.n;) { // a page at a time where it must be, else in two pieces
			const uint32_t in_page = std::min(page - t % page, r.n - t), n = whole || in_page < 3 ? in_page : std::min(in_page, t % page ? in_page : 3u), q = t / page;
			k_work.insert(k_work.end(), {first + t, n, r.per_head ? set : UINT32_MAX, t % page, p.k.code_at[q], p.v.code_at[q],
										 r.k_block ? block_k : p.k.param_at[q], p.v.param_at[q]});
			t += n;
		}
	}
	const auto pool = [&](const Words& at, uint32_t words) { return rig.u32(Words(size_t(at.size()) * (words + 4) + 8, 0xA5A5A5A5u), uint32_t(at.size() * (words + 4) + 8)); };
	p.k_codes = pool(p.k.code_at, kv_code_words(n_kv, D, r.k.bits, page)), p.v_codes = pool(p.v.code_at, kv_code_words(n_kv, D, r.v.bits, page));
	p.k_params = pool(p.k.param_at, param_words(r.k)), p.v_params = pool(p.v.param_at, param_words(r.v));
	if (r.k.norm == Norm::Balance) {
		Floats b(size_t(n_kv) * D);
		for (float& x : b) x = round_f16(random.uniform(0.3f, 3.f));
		p.balance = rig.f16(b, n_kv, D);
		p.k.balance = b;
	}
	const PromptKv src{p.src_k, p.src_v, 0};
	const uint32_t n_work = uint32_t(k_work.size() / 8);
	PackArgs a{};
	a.format = {r.k.bits == 16 ? Quant{.bits = 0} : r.k, r.v}; // f16 keys are stored by another op
	a.page = page, a.k_block = r.k_block;
	a.sources = rig.u32(sources, uint32_t(sources.size())), a.work = rig.u32(k_work, n_work, 8);
	a.k_codes = p.k_codes, a.v_codes = p.v_codes, a.k_params = r.k_block ? View() : p.k_params, a.v_params = p.v_params, a.balance = p.balance;
	if (r.k_block || r.v.norm == Norm::SqrtMax) {
		const uint32_t words = 24 + kv_channel_param_words(n_kv, D) + kv_factor_words(n_kv, D);
		p.block = rig.u32(Words(words, 0), words);
		BlockArgs b{};
		b.format = {r.k, r.v};
		b.head = UINT32_MAX, b.sources = a.sources, b.words = p.block, b.balance = p.balance;
		b.work = rig.u32({0, r.n, block_k, block_v}, 1, 4);
		rig.backend.kv_block(src, b);
		if (r.k_block) a.k_params = p.block;
		a.v_factors = p.block, a.factors = rig.u32(Words(n_work, block_v), n_work);
		p.factors = rig.u32(Words(p.n_pages, block_v), p.n_pages);
	}
	if (r.k.bits == 16) {
		Words at;
		for (uint32_t t = 0; t < r.n; ++t)
			for (uint32_t h = 0; h < n_kv; ++h)
				at.push_back(p.k.code_at[t / page] + kv_k_word(h, 0, t % page, D, 16, page)), at.push_back(kSkip);
		View rows = p.src_k; // tokens in order of `sources`
		Floats ordered(size_t(n_kv) * r.n * D);
		for (uint32_t t = 0; t < r.n; ++t)
			for (uint32_t h = 0; h < n_kv; ++h) std::copy_n(&p.k.x[(t * n_kv + h) * D], D, &ordered[(size_t(h) * r.n + t) * D]);
		rows = rig.f16(ordered, n_kv, r.n, D);
		rig.backend.kv_store({rows, rows, 0}, r.n, {p.k_codes, p.k_codes, rig.u32(at, r.n, n_kv, 2), page});
	}
	rig.backend.kv_pack(src, a);
	p.k.codes = rig.get_words(p.k_codes), p.v.codes = rig.get_words(p.v_codes), p.k.params = rig.get_words(p.k_params), p.v.params = rig.get_words(p.v_params);
	if (p.block) {
		const Words all = rig.get_words(p.block);
		if (r.k_block) p.k.block.assign(all.begin() + block_k, all.begin() + block_k + kv_channel_param_words(n_kv, D));
		if (block_v != kSkip) p.v.block.assign(all.begin() + block_v, all.begin() + block_v + kv_factor_words(n_kv, D));
	}
	Words pages;
	for (uint32_t q = 0; q < p.n_pages; ++q)
		pages.insert(pages.end(), {p.k.code_at[q], p.v.code_at[q], r.k_block ? block_k : p.k.param_at[q], p.v.param_at[q]});
	p.pages = rig.u32(pages, p.n_pages, 4);
	p.live = rig.u32(live, sets, p.n_pages, 4);
}

// Words of a pool outside its pages are as they were.
void check_gaps(const Words& pool, const Words& at, uint32_t words) {
	std::vector<bool> mine(pool.size(), false);
	for (uint32_t a : at) std::fill_n(mine.begin() + a, words, true);
	size_t touched = 0;
	for (size_t i = 0; i < pool.size(); ++i) touched += !mine[i] && pool[i] != 0xA5A5A5A5u;
	CHECK(touched == 0);
}

void run_pack(Backend& backend, const PackRow& r, const TestRow& row) {
	Random random(uint32_t(row.number) + 1);
	Rig rig(backend);
	Packed p;
	pack_on(rig, r, random, p);
	check_side(row, p.k);
	check_side(row, p.v);
	check_gaps(p.k.codes, p.k.code_at, kv_code_words(r.n_kv_heads, r.D, r.k.bits, r.page));
	check_gaps(p.v.codes, p.v.code_at, kv_code_words(r.n_kv_heads, r.D, r.v.bits, r.page));
	if (r.v.norm == Norm::SqrtMax)
		for (uint32_t h = 0; h < r.n_kv_heads; ++h)
			for (uint32_t c = 0; c < r.D; ++c) {
				float max = 0;
				for (uint32_t t = 0; t < r.n; ++t) max = std::max(max, std::fabs(p.v.x[(t * r.n_kv_heads + h) * r.D + c]));
				CHECK(p.v.factor(h, c) == doctest::Approx(std::sqrt(max)).epsilon(1e-3));
			}

	// attention over the pages, in two parts, and its normaliser
	const uint32_t T = 2, H = r.n_heads, D = r.D, share = H / r.n_kv_heads, cut = (p.n_pages + 1) / 2;
	const Floats q = random.normals(size_t(T) * H * D);
	const View vq = rig.f32(q, T, H, D), out = rig.out(T, H, D), lse = rig.out(T, H);
	Words work, row_parts;
	for (uint32_t t = 0; t < T; ++t) {
		work.insert(work.end(), {t, 0, cut, 2 * t, t, cut, p.n_pages - cut, 2 * t + 1});
		row_parts.insert(row_parts.end(), {2 * t, 2});
	}
	AttendGroup g{};
	g.format = {r.k, r.v}, g.page = r.page;
	g.k_codes = p.k_codes, g.v_codes = p.v_codes, g.k_params = r.k_block ? p.block : r.k.bits == 16 ? View() : p.k_params, g.v_params = p.v_params;
	if (r.v.norm == Norm::SqrtMax) g.v_factors = p.block;
	g.n_work = 2 * T, g.n_pages = p.n_pages;
	KvRead kv{};
	kv.groups = {&g, 1};
	kv.work = rig.u32(work, 2 * T, 4), kv.pages = p.pages, kv.live = p.live, kv.row_parts = rig.u32(row_parts, T, 2);
	kv.parts = rig.out(2 * T, H, D + 2), kv.n_kv_heads = r.n_kv_heads, kv.balance = p.balance, kv.lse = lse;
	if (r.v.norm == Norm::SqrtMax) kv.factors = p.factors;
	backend.attend(out, vq, kv);
	Floats want(q.size()), want_lse(size_t(T) * H);
	for (size_t i = 0; i < want_lse.size(); ++i) {
		const uint32_t h = uint32_t(i % H) / share;
		std::vector<double> score(r.n), y(D);
		for (uint32_t t = 0; t < r.n; ++t) {
			for (uint32_t c = 0; c < D; ++c) score[t] += double(q[i * D + c]) * double(p.k.value(h, t, c));
			score[t] /= std::sqrt(double(D));
		}
		const double max = *std::max_element(score.begin(), score.end());
		double sum = 0;
		for (uint32_t t = 0; t < r.n; ++t) {
			sum += std::exp(score[t] - max);
			for (uint32_t c = 0; c < D; ++c) y[c] += std::exp(score[t] - max) * double(p.v.value(h, t, c));
		}
		for (uint32_t c = 0; c < D; ++c) want[i * D + c] = float(y[c] / sum);
		want_lse[i] = float(max + std::log(sum));
	}
	check_close(row, rig.get(out), want, "attend");
	check_close(row, rig.get(lse), want_lse, "attend");
}

} // namespace

TEST_CASE("pack: kv_pack, kv_block, and attention over what they packed") { each_row(pack_rows(), run_pack); }

namespace {
struct ScoreRow {
	uint32_t T, n_heads, n_kv_heads, D, first; // rows of q; tokens of the prompt before row 0
	std::string text() const { return fmt::format("scores: T {} heads {}:{} head_dim {} after {}", T, n_heads, n_kv_heads, D, first); }
};
} // namespace

TEST_CASE("pack: scores of prompt tokens, channel maxima and the balancer they make") {
	std::vector<ScoreRow> rows = {{1, 4, 2, 64, 0}, {33, 8, 2, 64, 0}, {40, 3, 1, 96, 7}, {64, 4, 4, 8, 100}, {5, 8, 1, 128, 60}};
	each_row(rows, [](Backend& backend, const ScoreRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t n = r.first + r.T, T_cap = n + 5, share = r.n_heads / r.n_kv_heads;
		const Floats q = random.normals(size_t(r.T) * r.n_heads * r.D);
		Floats k = random.normals(size_t(r.n_kv_heads) * T_cap * r.D), v = random.normals(k.size());
		for (float& x : k) x = round_f16(x);
		Words probes;
		for (uint32_t t = 0; t < r.T; ++t)
			if (t % 3 == 0 || t + 1 == r.T) probes.push_back(t);
		const View vq = rig.f32(q, r.T, r.n_heads, r.D);
		const PromptKv kv{rig.f16(k, r.n_kv_heads, T_cap, r.D), rig.f16(v, r.n_kv_heads, T_cap, r.D), r.first, rig.out(r.T, r.n_heads)};
		backend.attend_prompt(rig.out(r.T, r.n_heads, r.D), vq, kv, nullptr);
		const Floats before = random.normals(size_t(r.n_kv_heads) * T_cap, 0.01f); // the op adds to what is there
		const View score = rig.f32(before, r.n_kv_heads, T_cap);
		backend.score_prompt(score, vq, rig.u32(probes, uint32_t(probes.size())), kv);
		Floats want = before, want_lse(size_t(r.T) * r.n_heads);
		for (uint32_t t = 0; t < r.T; ++t)
			for (uint32_t head = 0; head < r.n_heads; ++head) {
				const uint32_t h = head / share;
				std::vector<double> s(r.first + t + 1);
				double sum = 0;
				for (uint32_t i = 0; i < s.size(); ++i) {
					for (uint32_t c = 0; c < r.D; ++c)
						s[i] += double(q[(size_t(t) * r.n_heads + head) * r.D + c]) * double(k[(size_t(h) * T_cap + i) * r.D + c]);
					s[i] /= std::sqrt(double(r.D));
					sum += std::exp(s[i]);
				}
				want_lse[size_t(t) * r.n_heads + head] = float(std::log(sum));
				if (std::find(probes.begin(), probes.end(), t) == probes.end()) continue;
				for (uint32_t i = 0; i < s.size(); ++i) want[size_t(h) * T_cap + i] += float(std::exp(s[i]) / sum / share);
			}
		check_close(row, rig.get(kv.lse), want_lse, "attend_prompt");
		check_close(row, rig.get(score), want, "attend");

		const Floats some = random.normals(size_t(r.n_kv_heads) * r.D); // negative ones give way, larger ones stay
		const View max = rig.f32(some, r.n_kv_heads, r.D);
		backend.channel_max(max, vq);
		Floats want_max = some;
		for (size_t i = 0; i < q.size(); ++i) {
			float& m = want_max[(i / r.D % r.n_heads / share) * r.D + i % r.D];
			m = std::max(m, std::fabs(q[i]));
		}
		check_same_bits(row, rig.get(max), want_max);

		for (uint32_t t = 0; t < n; ++t) k[size_t(t) * r.D + 3] = 0; // a channel without keys has factor 1
		const View keys = rig.f16(k, r.n_kv_heads, T_cap, r.D), balance = rig.f16(Floats(some.size(), 9.f), r.n_kv_heads, r.D);
		backend.kv_balance(balance, max, {keys, keys, 0}, n);
		Floats got, want_b;
		const Words words = rig.get_words(balance);
		for (uint32_t h = 0; h < r.n_kv_heads; ++h)
			for (uint32_t c = 0; c < r.D; ++c) {
				float m = 0;
				for (uint32_t t = 0; t < n; ++t) m = std::max(m, std::fabs(k[(size_t(h) * T_cap + t) * r.D + c]));
				got.push_back(f16_of(words, size_t(h) * r.D + c));
				want_b.push_back(m > 0 ? std::sqrt(want_max[size_t(h) * r.D + c] / m) : 1.f);
			}
		check_close(row, got, want_b, "kv");
	});
}

TEST_CASE("pack: scores of tokens in f16 pages") {
	std::vector<ScoreRow> rows = {{3, 4, 2, 64, 45}, {1, 8, 1, 128, 33}, {2, 3, 3, 8, 64}};
	each_row(rows, [](Backend& backend, const ScoreRow& r, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t page = 32, n_pages = 3, slots = n_pages * page, share = r.n_heads / r.n_kv_heads;
		const uint32_t words = kv_code_words(r.n_kv_heads, r.D, 16, page);
		const Floats q = random.normals(size_t(r.T) * r.n_heads * r.D), lse = random.normals(size_t(r.T) * r.n_heads);
		const Floats before = random.normals(size_t(r.n_kv_heads) * slots, 0.01f);
		Floats k(size_t(r.n_kv_heads) * slots * r.D), want = before;
		Words pool(size_t(n_pages) * words, 0x7e007e00u), pages, live(n_pages * 4, 0), probes = {0};
		if (r.T > 1) probes.push_back(r.T - 1);
		for (uint32_t p = 0; p < n_pages; ++p) pages.insert(pages.end(), {(n_pages - 1 - p) * words, 0, 0, 0});
		for (uint32_t i = 0; i < r.first; ++i) { // live slots, spread
			const uint32_t s = i * 37 % slots;
			live[s / page * 4] |= 1u << s % page;
			for (uint32_t h = 0; h < r.n_kv_heads; ++h)
				for (uint32_t w = 0; w < r.D / 2; ++w) {
					float* x = &k[(size_t(h) * slots + s) * r.D + 2 * w];
					x[0] = round_f16(random.normal()), x[1] = round_f16(random.normal());
					pool[pages[s / page * 4] + kv_k_word(h, w, s % page, r.D, 16, page)] = f32_to_f16(x[0]) | uint32_t(f32_to_f16(x[1])) << 16;
				}
		}
		AttendGroup g{};
		g.page = page, g.k_codes = rig.u32(pool, uint32_t(pool.size())), g.v_codes = g.k_codes, g.n_work = 2, g.n_pages = n_pages;
		KvRead kv{};
		kv.groups = {&g, 1};
		kv.work = rig.u32({0, 0, 2, 0, 0, 2, 1, 1}, 2, 4), kv.pages = rig.u32(pages, n_pages, 4), kv.live = rig.u32(live, 1, n_pages, 4);
		kv.row_parts = rig.u32(Words(r.T * 2, 0), r.T, 2), kv.parts = rig.out(2, r.n_heads, r.D + 2), kv.n_kv_heads = r.n_kv_heads;
		const View score = rig.f32(before, r.n_kv_heads, slots);
		backend.score_slots(score, rig.f32(q, r.T, r.n_heads, r.D), rig.u32(probes, uint32_t(probes.size())), rig.f32(lse, r.T, r.n_heads), kv);
		for (uint32_t t : probes)
			for (uint32_t head = 0; head < r.n_heads; ++head)
				for (uint32_t s = 0; s < slots; ++s) {
					if (!(live[s / page * 4] >> s % page & 1)) continue;
					double dot = 0;
					for (uint32_t c = 0; c < r.D; ++c)
						dot += double(q[(size_t(t) * r.n_heads + head) * r.D + c]) * double(k[(size_t(head / share) * slots + s) * r.D + c]);
					want[size_t(head / share) * slots + s] += float(std::exp(dot / std::sqrt(double(r.D)) - double(lse[size_t(t) * r.n_heads + head])) / share);
				}
		check_close(row, rig.get(score), want, "attend");
	});
}
