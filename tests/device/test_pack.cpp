// kv_pack, kv_block and attention over packed pages on every device: parameters and codes against the methods' rules,
// implemented again here; attention against dequantise-then-attend in double.
#include "shared/kv_page.h"
#include "tests/support/compare.h"
#include "tests/support/kv_tables.h"
#include "tests/support/rig.h"
#include <algorithm>
#include <bit>
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
			return fmt::format("{} bits {} group {}{}{}", q.bits,
			                   q.scale == Scale::PerChannel ? "per channel"
			                   : q.scale == Scale::Codebook ? "with norms"
			                                                : "per token",
			                   q.group,
			                   q.prescale == Prescale::SqrtMax   ? " sqrt-max"
			                   : q.prescale == Prescale::Balance ? " balanced"
			                                                     : "",
			                   q.eta ? " eta" : "");
		};
		return fmt::format("pack {}: K {}, V {}, heads {}:{} head_dim {} page {} tokens {}{}{}", name, side(k), side(v),
		                   n_heads, n_kv_heads, D, page, n, k_block ? " block" : "", per_head ? " per head" : "");
	}
};

constexpr Quant channel(uint8_t bits, uint16_t group, float eta = 0) {
	return {bits, Scale::PerChannel, group, Prescale::None, eta};
}
constexpr Quant norms(uint8_t bits, bool mean, uint8_t param_bits = 8, bool rotate = true) {
	return {.bits = bits, .scale = Scale::Codebook, .rotate = rotate, .mean = mean, .param_bits = param_bits};
}
constexpr Quant bytes(Quant q) { // parameters in bytes
	q.param_bits = 8;
	return q;
}
constexpr Quant token(uint8_t bits, uint16_t group, Prescale prescale = Prescale::None, float eta = 0) {
	return {bits, Scale::PerToken, group, prescale, eta};
}

std::vector<PackRow> pack_rows() {
	return {
	    {"kivi2", channel(2, 32), token(2, 32), 8, 2, 64, 32, 64},
	    {"kivi1", channel(1, 64), token(1, 64), 4, 4, 64, 64, 64},
	    {"kivi4", channel(4, 128), token(4, 32), 8, 1, 128, 128, 256},
	    {"kivi2 bytes", bytes(channel(2, 32)), bytes(token(2, 32)), 8, 2, 64, 32, 64},
	    {"kivi3 bytes", bytes(channel(3, 64)), bytes(token(3, 80)), 4, 1, 80, 64, 128},
	    {"kivi1 bytes", bytes(channel(1, 128, 0.25f)), bytes(token(1, 64, Prescale::None, 0.25f)), 8, 2, 128, 128, 256},
	    {"kivi4 bytes of keys", bytes(channel(4, 32)), token(4, 96), 3, 3, 96, 32, 64},
	    {"kivi4 bytes of values", norms(4, true), bytes(token(4, 256)), 2, 1, 256, 128, 128, false, true},
	    {"kivi4 small heads", channel(4, 32), token(4, 8), 4, 2, 8, 32, 64},
	    {"rtn8", token(8, 32), token(8, 32), 3, 1, 96, 32, 45},
	    {"rtn2", token(2, 80), token(2, 80), 8, 2, 80, 64, 100},
	    {"rtn1", token(1, 96), token(1, 32), 4, 1, 96, 128, 130},
	    {"mixed bits", channel(4, 32), token(1, 64), 4, 2, 64, 32, 96},
	    {"f16 keys", {}, token(2, 64), 4, 2, 64, 32, 33},
	    {"all heads in one run", token(4, 128), token(2, 128), 4, 2, 64, 32, 70},
	    {"xquant", channel(2, 64, 0.045f), token(1, 32, Prescale::None, 1.f / 6), 4, 2, 64, 64, 128},
	    {"zipcache", channel(2, kGroupAll), token(2, 128, Prescale::SqrtMax), 4, 2, 64, 32, 75, true},
	    {"zipcache 4", channel(4, kGroupAll), token(4, 640, Prescale::SqrtMax), 8, 8, 80, 64, 100, true},
	    {"mikv", token(2, 32, Prescale::Balance), token(2, 32), 8, 2, 64, 32, 50, false, true},
	    {"mikv 8", token(8, 64, Prescale::Balance), token(8, 64), 4, 1, 128, 64, 64, false, true},
	    {"kivi2 per head", channel(2, 32), token(2, 32), 4, 4, 64, 32, 96, false, true},
	    {"3 bits", channel(3, 32), token(3, 32), 8, 2, 64, 32, 64},
	    {"3 bits, a head per scale", token(3, 80), token(3, 160), 8, 2, 80, 64, 100},
	    {"3 bits, small heads", channel(3, 32), token(3, 8), 4, 2, 8, 32, 64},
	    {"turbo3/2", norms(3, true), norms(2, false), 8, 2, 64, 128, 256},
	    {"turbo4/1, blocks of 16", norms(4, true), norms(1, false), 8, 2, 80, 32, 64},
	    {"turbo1/4, wide heads", norms(1, true), norms(4, false), 4, 1, 256, 64, 128},
	    {"turbo2/3 of the paper, per head", norms(2, false, 16), norms(3, false, 16), 8, 8, 128, 128, 256, false, true},
	    {"turbo2/3, 5 kv heads, not rotated", norms(2, true, 8, false), norms(3, false, 8, false), 15, 5, 96, 32, 64},
	    {"turbo4/3 without means", norms(4, false), norms(3, false), 8, 2, 64, 128, 256},
	    {"turbo keys, grouped values", norms(2, true), token(2, 32), 4, 2, 64, 64, 128},
	    {"grouped keys, turbo values", channel(4, 32), norms(2, false), 4, 2, 64, 32, 64},
	    {"turbo3/2, heads of 512", norms(3, true), norms(2, false), 8, 1, 512, 128, 128},
	    {"turbo4/1, blocks of 64", norms(4, true), norms(1, false), 4, 2, 320, 64, 64},
	    {"kivi2 bytes, heads of 512", bytes(channel(2, 128)), bytes(token(2, 32)), 4, 1, 512, 128, 128},
	    {"zipcache, heads of 512", channel(2, kGroupAll), token(2, 1024, Prescale::SqrtMax), 4, 2, 512, 32, 40, true},
	    {"mikv, heads of 384", token(2, 32, Prescale::Balance), token(2, 384), 3, 1, 384, 32, 40, false, true},
	};
}

// Scale and zero of a group by rule 1 of METHODS: rounded to f16 before the codes are computed.
struct Group {
	float scale, zero;     // codes are computed with these
	float d_scale, d_zero; // and decoded with these: XQuant's eta moves the ends inwards
};
Group group_of(const Floats& x, const Quant& q) {
	const auto [lo, hi] = std::minmax_element(x.begin(), x.end());
	const float top = float((1 << q.bits) - 1);
	Group g;
	g.scale = round_f16((*hi - *lo) / top), g.zero = round_f16(*lo);
	g.d_zero = round_f16(g.zero + float(q.eta) * g.scale * top),
	g.d_scale = round_f16((1 - 2 * float(q.eta)) * g.scale);
	return g;
}

// Tokens of one side in pages, as the test expects and as a device packed them.
struct Side {
	Quant q;
	bool is_k;
	uint32_t n_kv, D, page, n;
	Floats x;                   // (n, n_kv, D) halves, the packed values
	Words codes, params, block; // pool memory after the op; block: K's parameters, V's channel factors
	Words code_at, param_at;    // word offset of each page
	Floats balance;             // (n_kv, D), K with Prescale::Balance
	// Scale::Codebook, (n, n_kv, D): decoded codes and norms; before the rotation is undone, values of codes and means
	Floats decoded, books, means;
	uint32_t word(uint32_t h, uint32_t t, uint32_t w) const {
		const uint32_t i = t % page;
		return codes[code_at[t / page] +
		             (is_k ? kv_k_word(h, w, i, D, q.bits, page) : kv_v_word(h, i, w, D, q.bits, page))];
	}
	uint32_t code(uint32_t h, uint32_t t, uint32_t c) const {
		if (q.bits == 3)
			return (word(h, t, c / 16) >> c % 16 * 2 & 3) | (word(h, t, (D + 15) / 16 + c / 32) >> c % 32 & 1) << 2;
		const uint32_t per = 32 / q.bits;
		return word(h, t, c / per) >> c % per * q.bits & ((q.bits == 16 ? 0x10000u : 1u << q.bits) - 1);
	}
	uint32_t param(uint32_t h, uint32_t t, uint32_t c) const {
		if (q.scale == Scale::PerToken)
			return params[param_at[t / page] + kv_token_param(h, c, t % page, D, q.group, page)];
		return block.empty() ? params[param_at[t / page] + kv_channel_param(h, c, D)]
		                     : block[kv_channel_param(h, c, D)];
	}
	struct Params {
		float scale, zero, scale_step, zero_step; // steps: of bytes, else 0
	};
	Params params_of(uint32_t h, uint32_t t, uint32_t c) const {
		if (q.param_bits == 16) {
			const uint32_t p = param(h, t, c);
			return {f16_to_f32(uint16_t(p)), f16_to_f32(uint16_t(p >> 16)), 0, 0};
		}
		const bool channels = q.scale == Scale::PerChannel;
		const uint32_t all = channels ? n_kv * D : n_kv * D / q.group * page,
		               i = channels ? h * D + c : (h * D + c) / q.group * page + t % page;
		const uint32_t* words = &params[param_at[t / page]];
		const uint32_t pair = words[i / 2] >> i % 2 * 16, most = words[all / 2 + h];
		const float scale_step = f16_to_f32(uint16_t(most)) / 255, zero_step = f16_to_f32(uint16_t(most >> 16)) / 127;
		return {float(pair & 255) * scale_step, (float(pair >> 8 & 255) - 128) * zero_step, scale_step, zero_step};
	}
	float factor(uint32_t h, uint32_t c) const {
		return q.prescale == Prescale::SqrtMax ? f16_of(block, kv_factor_word(h, c, D) * 2 + kv_factor_half(h, c, D))
		                                       : 1.f;
	}
	float value(uint32_t h, uint32_t t, uint32_t c) const { // the value that attention must use
		if (q.bits == 16) return f16_to_f32(uint16_t(code(h, t, c)));
		if (q.scale == Scale::Codebook) return decoded[(t * n_kv + h) * D + c];
		const Params p = params_of(h, t, c);
		const float y = float(code(h, t, c)) * p.scale + p.zero;
		return q.prescale == Prescale::SqrtMax   ? y * factor(h, c)
		       : q.prescale == Prescale::Balance ? y / balance[h * D + c]
		                                         : y;
	}
	// The number that is quantised.
	float input(uint32_t h, uint32_t t, uint32_t c) const {
		const float v = x[(t * n_kv + h) * D + c];
		return q.prescale == Prescale::SqrtMax   ? v / factor(h, c)
		       : q.prescale == Prescale::Balance ? v * balance[h * D + c]
		                                         : v;
	}
};

// The codebook's value for code c of `bits`: u = c - (2^bits - 1) / 2.
double book_value(double u, uint32_t bits) {
	return u * double(kv_codebook_linear(bits) + kv_codebook_cubic(bits) * float(u * u));
}

// Decodes the codes, norms and means of a side, in double and with the rotation as a matrix.
void decode_norms(Side& s) {
	if (s.q.bits == 16 || s.q.scale != Scale::Codebook) return;
	for (Floats* f : {&s.decoded, &s.books, &s.means}) f->resize(s.x.size());
	const uint32_t D = s.D, block = s.q.rotate ? D & (~D + 1) : 1;
	for (uint32_t t = 0; t < s.n; ++t)
		for (uint32_t h = 0; h < s.n_kv; ++h) {
			const uint32_t* params = &s.params[s.param_at[t / s.page]];
			const uint32_t i = t % s.page, norms = s.n_kv * s.page, rest = norms * s.q.param_bits / 32; // words
			double norm;
			if (s.q.param_bits == 8)
				norm = double(params[(h * s.page + i) / 4] >> i % 4 * 8 & 255) / 255 *
				       double(f16_to_f32(uint16_t(params[rest + h])));
			else
				norm = f16_to_f32(uint16_t(params[(h * s.page + i) / 2] >> i % 2 * 16));
			std::vector<double> y(D);
			for (uint32_t c = 0; c < D; ++c) {
				const double u = s.code(h, t, c) - ((1 << s.q.bits) - 1) / 2.;
				y[c] = norm * book_value(u, s.q.bits);
				const size_t at = (t * s.n_kv + h) * D + c;
				s.books[at] = float(book_value(u, s.q.bits));
				const uint32_t means = rest + (s.q.param_bits == 8 ? (s.n_kv + 3) / 4 * 4 : 0), m = h * D + c;
				if (s.q.mean) s.means[at] = f16_to_f32(uint16_t(params[means + m / 2] >> m % 2 * 16));
				y[c] += double(s.means[at]);
			}
			for (uint32_t c = 0; c < D; ++c) { // row c of the inverse: the matrix is symmetric, signs come last
				double x = 0;
				for (uint32_t j = c / block * block; j < (c / block + 1) * block; ++j)
					x += (std::popcount(c % block & j % block) % 2 ? -1 : 1) * y[j];
				s.decoded[(t * s.n_kv + h) * D + c] =
				    float(x / std::sqrt(double(block)) * (s.q.rotate && kv_sign(c) ? -1 : 1));
			}
		}
}

// Of the scales that are tried for a head of a token, its codes have the one with the nearest direction: the squared
// sine of the angle between codes and values is the least, but for values between two codes.
void check_scales(const TestRow& row, const Side& s) {
	const uint32_t D = s.D, block = s.q.rotate ? D & (~D + 1) : 1, bits = s.q.bits;
	const double middle = ((1 << bits) - 1) / 2.;
	size_t worse = 0;
	std::vector<double> y(D), v(D);
	const auto sine2 = [&] {
		double dot = 0, yy = 0, vv = 0;
		for (uint32_t c = 0; c < D; ++c) dot += y[c] * v[c], yy += y[c] * y[c], vv += v[c] * v[c];
		return 1 - dot * dot / (yy * vv);
	};
	for (uint32_t t = 0; t < s.n; ++t)
		for (uint32_t h = 0; h < s.n_kv; ++h) {
			const size_t at = (t * s.n_kv + h) * D;
			double sum = 0;
			for (uint32_t c = 0; c < D; ++c) {
				y[c] = 0;
				for (uint32_t j = c / block * block; j < (c / block + 1) * block; ++j)
					y[c] += (std::popcount(c % block & j % block) % 2 ? -1 : 1) * (s.q.rotate && kv_sign(j) ? -1 : 1) *
					        double(s.x[at + j]);
				y[c] = y[c] / std::sqrt(double(block)) - double(s.means[at + c]);
				v[c] = double(s.books[at + c]);
				sum += y[c] * y[c];
			}
			const double rms = std::sqrt(sum / D), have = sine2();
			double best = 1;
			for (uint32_t i = 0; i < kv_codebook_tries(bits); ++i) {
				for (uint32_t c = 0; c < D; ++c) {
					const double z = y[c] / rms * double(kv_codebook_factor(bits, i));
					double code = -middle;
					while (code < middle && z > (book_value(code, bits) + book_value(code + 1, bits)) / 2) ++code;
					v[c] = book_value(code, bits);
				}
				best = std::min(best, sine2());
			}
			worse += have > best * 1.01 + 1e-5;
		}
	CHECK_MESSAGE(worse == 0, row_text(row) << ": " << worse << " of " << s.n * s.n_kv << " heads have another scale");
}

// The error of a codebook is about that of its bits for Gaussian values, and lengths are preserved.
// tests/golden/codebook has the exact numbers.
void check_norms(const TestRow& row, const Side& s) {
	constexpr double kError[] = {0, 0.3634, 0.1165, 0.0327, 0.0083};
	double error = 0, all = 0;
	size_t lengths = 0;
	for (uint32_t h = 0; h < s.n_kv; ++h)
		for (uint32_t first = 0; first < s.n; first += s.page) {
			std::vector<double> mean(s.D, 0);
			for (uint32_t t = first; t < first + s.page && s.q.mean; ++t)
				for (uint32_t c = 0; c < s.D; ++c) mean[c] += double(s.x[(t * s.n_kv + h) * s.D + c]) / s.page;
			for (uint32_t t = first; t < first + s.page; ++t) {
				double length = 0, kept = 0;
				for (uint32_t c = 0; c < s.D; ++c) {
					const size_t i = (t * s.n_kv + h) * s.D + c;
					const double x = double(s.x[i]) - mean[c], y = double(s.decoded[i]) - mean[c];
					length += x * x, kept += y * y, error += (x - y) * (x - y), all += x * x;
				}
				lengths += std::abs(std::sqrt(kept / length) - 1) > 0.02;
			}
		}
	const double least = kError[s.q.bits] * (s.q.rotate ? 0.7 : 0.1), most = kError[s.q.bits] * (s.q.rotate ? 1.5 : 5);
	CHECK_MESSAGE(error / all > least, row_text(row) << " " << error / all);
	CHECK_MESSAGE(error / all < most, row_text(row) << " " << error / all);
	CHECK_MESSAGE(lengths == 0, row_text(row) << ": " << lengths << " tokens have another length");
}

// Every code and parameter of a side is the one of its group. A value between two codes may take either; a parameter
// may be off by one unit in the last place of f16, because of the device's division.
void check_side(const TestRow& row, const Side& s) {
	if (s.q.bits == 16) return;
	if (s.q.scale == Scale::Codebook) {
		check_scales(row, s);
		return check_norms(row, s);
	}
	size_t bad = 0, total = 0;
	std::string first;
	const auto check_group = [&](const Floats& x,
	                             const std::vector<std::array<uint32_t, 3>>& who) { // head, token, channel
		const Group g = group_of(x, s.q);
		for (size_t i = 0; i < x.size(); ++i, ++total) {
			const auto [h, t, c] = who[i];
			const uint32_t code = s.code(h, t, c);
			const auto [scale, zero, scale_step, zero_step] = s.params_of(h, t, c);
			const float top = float((1 << s.q.bits) - 1), eta = float(s.q.eta);
			// Codes are computed with the plain end points; with parameters in bytes, with the decoded bytes.
			const float by_scale = scale_step > 0 ? scale / (1 - 2 * eta) : g.scale,
			            by_zero = scale_step > 0 ? zero - eta * by_scale * top : g.zero;
			const float exact = by_scale > 0 ? std::clamp((x[i] - by_zero) / by_scale, 0.f, top) : 0.f;
			const float least_scale = g.d_scale > 0 ? scale_step : 0;
			const bool ok =
			    std::abs(float(code) - exact) <= 0.5f + 0.01f &&
			    std::abs(scale - std::max(least_scale, g.d_scale)) <=
			        1e-3f * std::abs(g.d_scale) + 0.501f * scale_step &&
			    std::abs(zero - g.d_zero) <= 1e-3f * std::abs(g.d_zero) + 1e-3f * g.scale + 0.501f * zero_step;
			if (!ok && bad++ == 0)
				first = fmt::format("head {} token {} channel {}: code {} of {}, scale {} of {}, zero {} of {}", h, t,
				                    c, code, exact, scale, g.d_scale, zero, g.d_zero);
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
		if (h * s.D % s.q.group) continue; // the run began in an earlier head
		for (uint32_t t = 0; t < s.n; ++t)
			for (uint32_t c0 = 0; c0 < std::max<uint32_t>(s.D, s.q.group); c0 += s.q.group) {
				Floats x;
				std::vector<std::array<uint32_t, 3>> who;
				for (uint32_t i = c0; i < c0 + s.q.group; ++i)
					x.push_back(s.input(h + i / s.D, t, i % s.D)), who.push_back({h + i / s.D, t, i % s.D});
				check_group(x, who);
			}
	}
	if (bad || total != size_t(s.n_kv) * s.n * s.D)
		FAIL_CHECK(row_text(row) << "\n"
		                         << (s.is_k ? "K: " : "V: ") << bad << " of " << total << " codes are wrong, first "
		                         << first);
	else
		CHECK(bad == 0);
}

constexpr uint32_t kBalanceAt = 4; // word where the balancer begins
constexpr uint32_t kPrompt = 300;  // rows of the source; the packed tokens are some of them

struct Packed {
	Side k, v;
	uint32_t n_pages;
	Words sources, live_bits; // PackArgs::sources; live bits of each token set
	std::vector<PackWork> work;
	uint32_t block_k, block_v; // word offset in the block of K's parameters, V's factors; kSkip: none
	View src_k, src_v, k_codes, v_codes, k_params, v_params, block, balance;
};

Words shuffled(uint32_t n, Random& random) {
	Words r(n);
	std::iota(r.begin(), r.end(), 0u);
	for (uint32_t i = n; i > 1; --i) std::swap(r[i - 1], r[random.below(i)]);
	return r;
}
uint32_t param_words(const Quant& q, uint32_t n_kv, uint32_t D, uint32_t page) {
	if (q.bits == 16) return 0;
	if (q.scale != Scale::Codebook && q.param_bits == 8)
		return (q.scale == Scale::PerChannel ? n_kv * D : n_kv * D / q.group * page) / 2 + (n_kv + 3) / 4 * 4;
	if (q.scale == Scale::Codebook)
		return n_kv * page * q.param_bits / 32 + (q.param_bits == 8 ? (n_kv + 3) / 4 * 4 : 0) +
		       (q.mean ? n_kv * D / 2 : 0);
	return q.scale == Scale::PerChannel ? kv_channel_param_words(n_kv, D)
	                                    : kv_token_param_words(n_kv, D, q.group, page);
}

// Pages and their parameters in shuffled order in pools, with room between them.
void make_pools(Rig& rig, Side& s, uint32_t n_pages, Random& random, View& codes, View& params) {
	const auto pool = [&](Words& at, uint32_t words) {
		at = shuffled(n_pages, random);
		for (uint32_t& a : at) a = a * (words + 4) + 4;
		const uint32_t all = n_pages * (words + 4) + 8;
		return rig.u32(Words(all, 0xA5A5A5A5u), all);
	};
	codes = pool(s.code_at, kv_code_words(s.n_kv, s.D, s.q.bits, s.page));
	params = pool(s.param_at, param_words(s.q, s.n_kv, s.D, s.page));
}

// Places the packed tokens of the prompt: kv heads with token sets of their own take other rows. A page is one work
// item if K's parameters are per channel in it; else it is filled in two pieces.
void place_tokens(const PackRow& r, const Floats& k, const Floats& v, Random& random, Packed& p) {
	const uint32_t n_kv = r.n_kv_heads, D = r.D, sets = r.per_head ? n_kv : 1;
	const bool whole = (r.k.scale == Scale::PerChannel && !r.k_block && r.k.bits != 16) ||
	                   r.k.scale == Scale::Codebook || r.v.scale == Scale::Codebook;
	p.live_bits.assign(size_t(sets) * p.n_pages * 4, 0);
	for (uint32_t set = 0; set < sets; ++set) {
		const Words rows = shuffled(kPrompt, random);
		for (uint32_t t = 0; t < r.n; ++t) {
			p.live_bits[(set * p.n_pages + t / r.page) * 4 + t % r.page / 32] |= 1u << t % 32;
			for (uint32_t h = r.per_head ? set : 0; h < (r.per_head ? set + 1 : n_kv); ++h)
				for (uint32_t c = 0; c < D; ++c) {
					p.k.x[(t * n_kv + h) * D + c] = k[(size_t(h) * kPrompt + rows[t]) * D + c];
					p.v.x[(t * n_kv + h) * D + c] = v[(size_t(h) * kPrompt + rows[t]) * D + c];
				}
		}
		const uint32_t first = uint32_t(p.sources.size());
		p.sources.insert(p.sources.end(), rows.begin(), rows.begin() + r.n);
		for (uint32_t t = 0, n; t < r.n; t += n) {
			const uint32_t room = std::min(r.page - t % r.page, r.n - t), page = t / r.page;
			n = whole || t % r.page ? room : std::min(room, 3u);
			p.work.push_back({.src = first + t,
			                  .n = n,
			                  .head = r.per_head ? set : UINT32_MAX,
			                  .slot = t % r.page,
			                  .k_codes = p.k.code_at[page],
			                  .v_codes = p.v.code_at[page],
			                  .k_params = r.k_block ? p.block_k : p.k.param_at[page],
			                  .v_params = p.v.param_at[page],
			                  .v_factors = p.block_v,
			                  .balance = kBalanceAt});
		}
	}
}

// Keys in f16 beside packed values are stored, not packed.
void store_keys(Rig& rig, const PackRow& r, const Packed& p) {
	Words at;
	Floats ordered(size_t(r.n_kv_heads) * r.n * r.D); // tokens as `sources` lists them
	for (uint32_t t = 0; t < r.n; ++t)
		for (uint32_t h = 0; h < r.n_kv_heads; ++h) {
			const uint32_t word = kv_k_word(h, 0, t % r.page, r.D, 16, r.page);
			at.insert(at.end(), {p.k.code_at[t / r.page] + word, kSkip});
			std::copy_n(&p.k.x[(t * r.n_kv_heads + h) * r.D], r.D, &ordered[(size_t(h) * r.n + t) * r.D]);
		}
	const View rows = rig.f16(ordered, r.n_kv_heads, r.n, r.D);
	rig.backend.kv_store({rows, rows, 0}, r.n, {p.k_codes, p.k_codes, rig.u32(at, r.n, r.n_kv_heads, 2), r.page});
}

// Runs the ops under test on the prepared data, and reads the pools.
void pack_tokens(Rig& rig, const PackRow& r, Packed& p) {
	const KvRows src{p.src_k, p.src_v, 0};
	const uint32_t n_kv = r.n_kv_heads;
	PackArgs a{};
	a.format = {r.k.bits == 16 ? Quant{.bits = 0} : r.k, r.v};
	a.page = r.page, a.k_block = r.k_block, a.balance = p.balance;
	a.sources = rig.u32(p.sources, uint32_t(p.sources.size())), a.work = upload_work(rig, p.work);
	a.k_codes = p.k_codes, a.v_codes = p.v_codes, a.k_params = p.k_params, a.v_params = p.v_params;
	if (p.block_k != kSkip || p.block_v != kSkip) {
		const uint32_t words = 24 + kv_channel_param_words(n_kv, r.D) + kv_factor_words(n_kv, r.D);
		p.block = rig.u32(Words(words, 0), words);
		BlockArgs b{};
		b.format = {r.k, r.v};
		b.sources = a.sources, b.words = p.block, b.balance = p.balance;
		b.work = upload_work<BlockWork>(rig, {{.src = 0,
		                                       .n = r.n,
		                                       .head = UINT32_MAX,
		                                       .k_params = p.block_k,
		                                       .v_factors = p.block_v,
		                                       .balance = kBalanceAt}});
		rig.backend.kv_block(src, b);
		if (r.k_block) a.k_params = p.block;
		a.v_factors = p.block;
	}
	if (r.k.bits == 16) store_keys(rig, r, p);
	rig.backend.kv_pack(src, a);

	p.k.codes = rig.get_words(p.k_codes), p.k.params = rig.get_words(p.k_params);
	p.v.codes = rig.get_words(p.v_codes), p.v.params = rig.get_words(p.v_params);
	const Words block = p.block ? rig.get_words(p.block) : Words();
	const auto part = [&](uint32_t at, uint32_t n) { return Words(block.begin() + at, block.begin() + at + n); };
	if (p.block_k != kSkip) p.k.block = part(p.block_k, kv_channel_param_words(n_kv, r.D));
	if (p.block_v != kSkip) p.v.block = part(p.block_v, kv_factor_words(n_kv, r.D));
}

void make_packed(Rig& rig, const PackRow& r, Random& random, Packed& p) {
	const uint32_t n_kv = r.n_kv_heads, D = r.D;
	p.n_pages = (r.n + r.page - 1) / r.page;
	p.block_k = r.k_block ? 8 : kSkip;
	p.block_v = r.v.prescale == Prescale::SqrtMax ? 16 + kv_channel_param_words(n_kv, D) : kSkip;
	Floats k(size_t(n_kv) * kPrompt * D), v(k.size());
	for (size_t i = 0; i < k.size(); ++i) { // with outlier channels and offsets
		const uint32_t c = uint32_t(i % D);
		k[i] = round_f16(random.normal() * (c % 13 == 5 ? 6.f : 1.f) + (c % 7 == 3 ? 2.f : 0.f));
		v[i] = round_f16(random.normal() * (c % 11 == 2 ? 4.f : 1.f));
	}
	p.src_k = rig.f16(k, n_kv, kPrompt, D), p.src_v = rig.f16(v, n_kv, kPrompt, D);
	const Floats x(size_t(r.n) * n_kv * D);
	p.k = {r.k, true, n_kv, D, r.page, r.n, x, {}, {}, {}, {}, {}, {}, {}, {}, {}};
	p.v = {r.v, false, n_kv, D, r.page, r.n, x, {}, {}, {}, {}, {}, {}, {}, {}, {}};
	make_pools(rig, p.k, p.n_pages, random, p.k_codes, p.k_params);
	make_pools(rig, p.v, p.n_pages, random, p.v_codes, p.v_params);
	if (r.k.prescale == Prescale::Balance) {
		p.k.balance.resize(size_t(n_kv) * D);
		for (float& b : p.k.balance) b = round_f16(random.uniform(0.3f, 3.f));
		Floats words(kBalanceAt * 2, NAN); // the balancer of another layer
		words.insert(words.end(), p.k.balance.begin(), p.k.balance.end());
		p.balance = as_words(rig.f16(words, uint32_t(words.size())));
	}
	place_tokens(r, k, v, random, p);
	pack_tokens(rig, r, p);
}

// Words of a pool outside its pages are unchanged.
void check_gaps(const Words& pool, const Words& at, uint32_t words) {
	std::vector<bool> mine(pool.size(), false);
	for (uint32_t a : at) std::fill_n(mine.begin() + a, words, true);
	size_t touched = 0;
	for (size_t i = 0; i < pool.size(); ++i) touched += !mine[i] && pool[i] != 0xA5A5A5A5u;
	CHECK(touched == 0);
}

// Softmax attention of one head over the decoded pages; returns the log of its normaliser.
double attend_reference(const Packed& p, uint32_t h, const float* q, float* out) {
	const uint32_t n = p.k.n, D = p.k.D;
	std::vector<double> score(n), y(D);
	for (uint32_t t = 0; t < n; ++t) {
		for (uint32_t c = 0; c < D; ++c) score[t] += double(q[c]) * double(p.k.value(h, t, c));
		score[t] /= std::sqrt(double(D));
	}
	const double max = *std::max_element(score.begin(), score.end());
	double sum = 0;
	for (uint32_t t = 0; t < n; ++t) {
		sum += std::exp(score[t] - max);
		for (uint32_t c = 0; c < D; ++c) y[c] += std::exp(score[t] - max) * double(p.v.value(h, t, c));
	}
	for (uint32_t c = 0; c < D; ++c) out[c] = float(y[c] / sum);
	return max + std::log(sum);
}

// Attention of two rows over the pages, each in two parts.
void check_attention(Rig& rig, const PackRow& r, const TestRow& row, const Packed& p, Random& random) {
	const uint32_t T = 2, H = r.n_heads, D = r.D, cut = (p.n_pages + 1) / 2;
	// With queries rounded to int8, errors of scores are in proportion to their spread, so it is kept small.
	const Floats q = random.normals(size_t(T) * H * D, rig.backend.info().int8_attend ? 0.125f : 1.f);
	const View vq = rig.f32(q, T, H, D), out = rig.out(T, H, D), lse = rig.out(T, H);
	Words row_parts, pages;
	for (uint32_t i = 0; i < p.n_pages; ++i)
		pages.insert(pages.end(),
		             {p.k.code_at[i], p.v.code_at[i], r.k_block ? p.block_k : p.k.param_at[i], p.v.param_at[i]});
	const KvTables tables(rig, pages, p.live_bits, Words(p.n_pages, p.block_v));
	std::vector<AttendWork> work;
	for (uint32_t t = 0; t < T; ++t) {
		work.push_back(tables.item(t, 2 * t, 0, cut, kBalanceAt));
		work.push_back(tables.item(t, 2 * t + 1, cut, p.n_pages - cut, kBalanceAt));
		row_parts.insert(row_parts.end(), {2 * t, 2});
	}
	AttendGroup g{};
	g.format = {r.k, r.v}, g.page = r.page, g.n_work = 2 * T, g.n_pages = p.n_pages;
	g.k_codes = p.k_codes, g.v_codes = p.v_codes, g.v_params = p.v_params;
	if (r.k.bits != 16) g.k_params = r.k_block ? p.block : p.k_params;
	KvRead kv{};
	kv.groups = {&g, 1};
	kv.work = upload_work(rig, work), kv.tables = tables.view;
	kv.row_parts = rig.u32(row_parts, T, 2), kv.parts = rig.out(2 * T, H, D + 2);
	kv.n_kv_heads = r.n_kv_heads, kv.balance = p.balance;
	if (p.block_v != kSkip) g.v_factors = p.block;
	rig.backend.attend(out, lse, vq, kv);
	Floats want(q.size()), want_lse(size_t(T) * H);
	for (size_t i = 0; i < want_lse.size(); ++i)
		want_lse[i] = float(attend_reference(p, uint32_t(i % H) / (H / r.n_kv_heads), &q[i * D], &want[i * D]));
	const std::string_view allowed = attend_tolerance(rig.backend.info(), /*prompt=*/false, /*packed=*/true, "attend");
	// A balancer makes some channels of a query several times as large as others, and the steps of 8 bits with them.
	const double factor = r.k.prescale == Prescale::Balance ? 1.5 : 1;
	check_close(row, rig.get(out), want, allowed, factor);
	check_close(row, rig.get(lse), want_lse, allowed, factor);
}

void run_pack(Backend& backend, const PackRow& r, const TestRow& row) {
	Random random(uint32_t(row.number) + 1);
	Rig rig(backend);
	Packed p;
	make_packed(rig, r, random, p);
	decode_norms(p.k), decode_norms(p.v);
	check_side(row, p.k);
	check_side(row, p.v);
	check_gaps(p.k.codes, p.k.code_at, kv_code_words(r.n_kv_heads, r.D, r.k.bits, r.page));
	check_gaps(p.v.codes, p.v.code_at, kv_code_words(r.n_kv_heads, r.D, r.v.bits, r.page));
	if (r.v.prescale == Prescale::SqrtMax)
		for (uint32_t h = 0; h < r.n_kv_heads; ++h)
			for (uint32_t c = 0; c < r.D; ++c) {
				float max = 0;
				for (uint32_t t = 0; t < r.n; ++t)
					max = std::max(max, std::fabs(p.v.x[(t * r.n_kv_heads + h) * r.D + c]));
				CHECK(p.v.factor(h, c) == doctest::Approx(std::sqrt(max)).epsilon(1e-3));
			}
	check_attention(rig, r, row, p, random);
}

} // namespace

TEST_CASE("pack: kv_pack, kv_block, and attention over what they packed") { each_row(pack_rows(), run_pack); }
