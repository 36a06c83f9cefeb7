// Scalar quantisation and dequantisation of one group, and packed codes: the definition that all backends are tested
// against.
//
// Asymmetric round-to-nearest: scale = (max - min) / (2^bits - 1) and zero = min are rounded to f16 first; codes are
// computed in f32 against the rounded values, half to even, clamped to 0 .. 2^bits - 1. A group whose scale is 0 in
// f16 stores codes 0. x_hat = code * scale + zero, in f32. Never contracted to a fused multiply-add.
#pragma once
#include "engine/kv_host/policy.h"
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvrun {

struct Params { // as stored: f16
	uint16_t scale, zero;
	uint32_t word() const { return uint32_t(scale) | uint32_t(zero) << 16; }
	bool operator==(const Params&) const = default;
};
constexpr Params params_of_word(uint32_t w) { return {uint16_t(w), uint16_t(w >> 16)}; }

// XQuant eq. 9 in f32: zero += eta * scale * (2^bits - 1), scale *= 1 - 2 eta, both rounded to f16 again.
struct Eta {
	float zero_shift = 0, scale_factor = 1;
	Eta() = default;
	explicit Eta(double eta) : zero_shift(float(eta)), scale_factor(float(1.0 - 2.0 * eta)) {}
};

// How codes are decoded: x_hat = code * scale + zero.
struct Meaning {
	float scale, zero;
};
Meaning meaning_of(Params);

// The code nearest to x, 0 .. top; 0 for NaN, which a damaged session file may hold.
uint8_t nearest_code(float x, float top);
// Codes of x by its minimum and maximum; returns the parameters that dequantise them.
Params quantise(std::span<const float> x, uint32_t bits, Eta, std::span<uint8_t> codes);
float dequantise(uint32_t code, Params);

// ---- (scale, zero) in bytes: shaders/shared/kv_page.h

// The parameters that quantise() returns, without computing codes.
Params group_params(std::span<const float> x, uint32_t bits, Eta);
// The largest scale and |zero| of the groups of a kv head of a page.
Params largest_of(std::span<const Params>);
// The bytes nearest to p, scale in the low one; a scale above 0 stays above 0.
uint16_t param_bytes(Params p, Params largest);
Meaning meaning_of(uint16_t bytes, Params largest);
// Codes of x by the stored parameters, moved back to the plain end points.
void quantise_by(Meaning stored, std::span<const float> x, uint32_t bits, Eta, std::span<uint8_t> codes);

// The uniform codes' parameters in a page; the page holds the tokens of n_kv_heads heads.
struct ParamPage {
	const Quant& q;
	const uint32_t* params;
	uint32_t n_kv_heads, head_dim, page;
	uint32_t n_params() const;
	uint32_t param_of(uint32_t head, uint32_t channel, uint32_t token) const; // its number
	Meaning meaning(uint32_t head, uint32_t channel, uint32_t token) const;
};

// ---- codes of a codebook, Scale::Codebook: shaders/shared/kv_page.h has the codebook and the rotation

float codebook_value(uint32_t code, uint32_t bits);
uint32_t codebook_code(float x, uint32_t bits); // the nearest
// Codes of one head of a token, with the scale of kv_codebook_factor() whose codes have the direction nearest to x.
// Returns the norm with which the decoded values have the length of x.
float quantise_norm(std::span<const float> x, uint32_t bits, std::span<uint8_t> codes);
// Norms of one kv head of a page in 255ths of the largest; returns the largest as f16.
uint16_t quantise_norms(std::span<const float> norms, std::span<uint8_t> bytes);
// One head, in place: the rotation and its inverse.
void rotate(std::span<float> x);
void rotate_back(std::span<float> x);

// Norm of a token and mean of a channel from a page's parameters; the page holds the tokens of n_kv_heads heads.
struct NormPage {
	const Quant& q;
	const uint32_t* params;
	uint32_t n_kv_heads, head_dim, page;
	float norm(uint32_t head, uint32_t token) const;
	float mean(uint32_t head, uint32_t channel) const;
};

// Words of the parameters of packed keys or values in a page.
uint32_t page_param_words(const Quant&, uint32_t n_kv_heads, uint32_t head_dim, uint32_t page);

// ---- packed codes

// The code of channel c of one head of a token, whose words are `stride` apart.
uint32_t token_code(const uint32_t* words, uint32_t stride, uint32_t head_dim, uint32_t bits, uint32_t c);
// Writes that code, to consecutive words.
void set_token_code(std::span<uint32_t> words, uint32_t head_dim, uint32_t bits, uint32_t c, uint32_t code);

// Code `i` of packed words, lowest bits first; bits 1, 2, 4, 8, 16.
uint32_t unpack(std::span<const uint32_t> words, uint32_t bits, size_t i);
void pack(std::span<uint32_t> words, uint32_t bits, size_t i, uint32_t code);

// sqrt(max|x|) as f16, 1 where that is 0: ZipCache's channel factor.
uint16_t channel_factor(std::span<const float> x);
// sqrt(max_q / max_k) as f16, 1 where that is 0: MiKV's channel balancer.
uint16_t balance_factor(float max_abs_q, float max_abs_k);

} // namespace kvrun
