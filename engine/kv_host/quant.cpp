// Scalar quantisation and dequantisation of one group, and packed codes: the definition that all backends are tested
// against.
#include "engine/kv_host/quant.h"
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include "shaders/shared/kv_page.h"
#include <algorithm>
#include <cmath>
#include <vector>

namespace kvrun {

uint8_t nearest_code(float x, float top) {
	const float code = std::nearbyint(x);
	return code > 0 ? uint8_t(std::min(code, top)) : uint8_t(0);
}

static float top_code(uint32_t bits) { return float((1u << bits) - 1u); }

// Codes from the smallest to the largest value.
static Meaning plain_meaning(std::span<const float> x, uint32_t bits) {
	KV_ASSERT(bits >= 1 && bits <= 8 && !x.empty());
	const auto [lo, hi] = std::minmax_element(x.begin(), x.end());
	return {round_f16((*hi - *lo) / top_code(bits)), round_f16(*lo)};
}
static void put_codes(Meaning m, std::span<const float> x, uint32_t bits, std::span<uint8_t> codes) {
	KV_ASSERT(codes.size() == x.size());
	for (size_t i = 0; i < x.size(); ++i)
		codes[i] = nearest_code(m.scale > 0 ? (x[i] - m.zero) / m.scale : 0.f, top_code(bits));
}
// Codes are computed with the plain end points; only the stored parameters move inwards.
static Params with_eta(Meaning plain, uint32_t bits, Eta eta) {
	return {f32_to_f16(eta.scale_factor * plain.scale),
	        f32_to_f16(plain.zero + eta.zero_shift * plain.scale * top_code(bits))};
}

Meaning meaning_of(Params p) { return {f16_to_f32(p.scale), f16_to_f32(p.zero)}; }

Params quantise(std::span<const float> x, uint32_t bits, Eta eta, std::span<uint8_t> codes) {
	const Meaning plain = plain_meaning(x, bits);
	put_codes(plain, x, bits, codes);
	return with_eta(plain, bits, eta);
}

float dequantise(uint32_t code, Params p) { return float(code) * f16_to_f32(p.scale) + f16_to_f32(p.zero); }

Params group_params(std::span<const float> x, uint32_t bits, Eta eta) {
	return with_eta(plain_meaning(x, bits), bits, eta);
}
Params largest_of(std::span<const Params> params) {
	float scale = 0, zero = 0;
	for (const Params p : params) {
		const Meaning m = meaning_of(p);
		scale = std::max(scale, m.scale), zero = std::max(zero, std::fabs(m.zero));
	}
	return {f32_to_f16(scale), f32_to_f16(zero)};
}
uint16_t param_bytes(Params p, Params largest) {
	const Meaning m = meaning_of(p), most = meaning_of(largest);
	const float scale_step = kv_255th(most.scale), zero_step = kv_127th(most.zero);
	uint32_t scale = nearest_code(scale_step > 0 ? m.scale / scale_step : 0.f, 255);
	if (m.scale > 0 && !scale) scale = 1;
	const uint32_t zero = nearest_code(128.f + std::nearbyint(zero_step > 0 ? m.zero / zero_step : 0.f), 255);
	return uint16_t(scale | zero << 8);
}
Meaning meaning_of(uint16_t bytes, Params largest) {
	const Meaning most = meaning_of(largest);
	return {float(bytes & 255) * kv_255th(most.scale), (float(bytes >> 8) - 128.f) * kv_127th(most.zero)};
}
void quantise_by(Meaning stored, std::span<const float> x, uint32_t bits, Eta eta, std::span<uint8_t> codes) {
	Meaning plain = stored;
	plain.scale /= eta.scale_factor;
	plain.zero -= eta.zero_shift * plain.scale * top_code(bits);
	put_codes(plain, x, bits, codes);
}

uint32_t ParamPage::n_params() const {
	return q.scale == Scale::PerChannel ? kv_channel_param_words(n_kv_heads, head_dim)
	                                    : kv_token_param_words(n_kv_heads, head_dim, q.group, page);
}
uint32_t ParamPage::param_of(uint32_t head, uint32_t channel, uint32_t token) const {
	return q.scale == Scale::PerChannel ? kv_channel_param(head, channel, head_dim)
	                                    : kv_token_param(head, channel, token, head_dim, q.group, page);
}
Meaning ParamPage::meaning(uint32_t head, uint32_t channel, uint32_t token) const {
	const uint32_t i = param_of(head, channel, token);
	if (q.param_bits == 16) return meaning_of(params_of_word(params[i]));
	const Params largest = params_of_word(params[kv_byte_largest_word(n_params(), head)]);
	return meaning_of(uint16_t(params[kv_byte_param_word(i)] >> i % 2 * 16), largest);
}

float codebook_value(uint32_t code, uint32_t bits) {
	const float u = float(code) - kv_codebook_middle(bits);
	return u * (kv_codebook_linear(bits) + kv_codebook_cubic(bits) * (u * u));
}

uint32_t codebook_code(float x, uint32_t bits) {
	uint32_t code = 0;
	for (uint32_t i = 0; i + 1 < 1u << bits; ++i)
		code += x > 0.5f * (codebook_value(i, bits) + codebook_value(i + 1, bits));
	return code;
}

static float squares(std::span<const float> x) {
	float sum = 0;
	for (const float v : x) sum += v * v;
	return sum;
}

float quantise_norm(std::span<const float> x, uint32_t bits, std::span<uint8_t> codes) {
	KV_ASSERT(bits >= 1 && bits <= 4 && !x.empty() && codes.size() == x.size());
	const float sum = squares(x), rms = std::sqrt(sum / float(x.size()));
	std::vector<float> unit(x.begin(), x.end());
	for (float& v : unit) v = rms > 0 ? v / rms : 0.f;
	float best = 0, nearest = -1, decoded = 0;
	for (uint32_t n = 0; n < kv_codebook_tries(bits); ++n) {
		const float factor = kv_codebook_factor(bits, n);
		float dot = 0, length = 0; // of the values, squared; no value of a codebook is 0
		for (const float z : unit) {
			const float v = codebook_value(codebook_code(z * factor, bits), bits);
			dot += z * v, length += v * v;
		}
		if (const float near = dot * dot / length; near > nearest) nearest = near, best = factor, decoded = length;
	}
	for (size_t i = 0; i < x.size(); ++i) codes[i] = uint8_t(codebook_code(unit[i] * best, bits));
	return std::sqrt(sum / decoded);
}

uint16_t quantise_norms(std::span<const float> norms, std::span<uint8_t> bytes) {
	const uint16_t largest = f32_to_f16(*std::max_element(norms.begin(), norms.end()));
	const float step = kv_255th(f16_to_f32(largest));
	for (size_t i = 0; i < norms.size(); ++i) bytes[i] = nearest_code(step > 0 ? norms[i] / step : 0.f, 255);
	return largest;
}

static void hadamard(std::span<float> x) {
	const uint32_t block = kv_rotation_block(uint32_t(x.size()));
	for (uint32_t step = 1; step < block; step *= 2)
		for (uint32_t i = 0; i < x.size(); ++i)
			if (!(i & step)) {
				const float a = x[i], b = x[i + step];
				x[i] = a + b, x[i + step] = a - b;
			}
	for (float& v : x) v *= kv_rotation_scale(block);
}
static void change_signs(std::span<float> x) {
	for (uint32_t c = 0; c < x.size(); ++c)
		if (kv_sign(c)) x[c] = -x[c];
}
void rotate(std::span<float> x) { change_signs(x), hadamard(x); }
void rotate_back(std::span<float> x) { hadamard(x), change_signs(x); }

float NormPage::norm(uint32_t head, uint32_t token) const {
	const uint32_t per_word = 32 / q.param_bits;
	const uint32_t x =
	    unpack(std::span(params + kv_norm_word(head, token, page, q.param_bits), 1), q.param_bits, token % per_word);
	if (q.param_bits == 16) return f16_to_f32(uint16_t(x));
	return float(x) * kv_255th(f16_to_f32(uint16_t(params[kv_norm_scale_word(n_kv_heads, head, page)])));
}
float NormPage::mean(uint32_t head, uint32_t channel) const {
	if (!q.mean) return 0;
	const uint32_t word = params[kv_mean_word(n_kv_heads, head, channel, head_dim, page, q.param_bits)];
	return f16_to_f32(uint16_t(word >> 16 * (channel % 2)));
}

uint32_t page_param_words(const Quant& q, uint32_t n_kv_heads, uint32_t head_dim, uint32_t page) {
	if (q.scale != Scale::Codebook) {
		const uint32_t n = ParamPage{q, nullptr, n_kv_heads, head_dim, page}.n_params();
		return q.param_bits == 8 ? kv_byte_param_words(n, n_kv_heads) : n;
	}
	return kv_norm_words(n_kv_heads, page, q.param_bits) + (q.mean ? kv_mean_words(n_kv_heads, head_dim) : 0);
}

// Word and shift of bits of a code in words of `bits`-bit codes.
static uint32_t code_at(const uint32_t* words, uint32_t stride, uint32_t bits, uint32_t c) {
	const uint32_t per_word = 32 / bits;
	return words[size_t(c / per_word) * stride] >> c % per_word * bits & ((1u << bits) - 1u);
}
uint32_t token_code(const uint32_t* words, uint32_t stride, uint32_t head_dim, uint32_t bits, uint32_t c) {
	if (bits != 3) return code_at(words, stride, bits, c);
	const uint32_t* high = words + size_t(kv_token_words(head_dim, 2)) * stride;
	return code_at(words, stride, 2, c) | code_at(high, stride, 1, c) << 2;
}
void set_token_code(std::span<uint32_t> words, uint32_t head_dim, uint32_t bits, uint32_t c, uint32_t code) {
	if (bits != 3) return pack(words, bits, c, code);
	pack(words, 2, c, code & 3);
	pack(words.subspan(kv_token_words(head_dim, 2)), 1, c, code >> 2);
}

uint32_t unpack(std::span<const uint32_t> words, uint32_t bits, size_t i) {
	const size_t per_word = 32 / bits;
	return words[i / per_word] >> (i % per_word * bits) & ((1u << bits) - 1u);
}

void pack(std::span<uint32_t> words, uint32_t bits, size_t i, uint32_t code) {
	const size_t per_word = 32 / bits, shift = i % per_word * bits;
	const uint32_t mask = ((1u << bits) - 1u) << shift;
	uint32_t& w = words[i / per_word];
	w = (w & ~mask) | (code << shift & mask);
}

uint16_t channel_factor(std::span<const float> x) {
	float m = 0;
	for (float v : x) m = std::max(m, std::fabs(v));
	const uint16_t c = f32_to_f16(std::sqrt(m));
	return c ? c : 0x3c00;
}

uint16_t balance_factor(float max_abs_q, float max_abs_k) {
	if (!(max_abs_k > 0)) return 0x3c00; // a channel without keys: any finite factor is correct
	const uint16_t b = std::min<uint16_t>(f32_to_f16(std::sqrt(max_abs_q / std::max(max_abs_k, 1e-12f))), 0x7bff);
	return b ? b : 0x3c00;
}

} // namespace kvrun
