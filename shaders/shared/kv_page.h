// Page layout of the KV cache. Read by C++, CUDA and GLSL: uint, float, #define and plain functions only.
//
// A page holds `page` tokens (32, 64 or 128) of one layer and one tier, for all kv heads, with K codes and V codes
// separate. Codes are packed along channels, whatever axis the scales run along: a word holds 32/bits neighbouring
// channels of
// one token, the lowest channel in the lowest bits; bits = 16 is plain f16. Codes of 3 bits are two planes: words with
// the low 2 bits of every code, then words with the high bit of every code.
//   K codes: [kv head][word][token]   one lane owns one token, neighbouring lanes read neighbouring words
//   V codes: [kv head][token][word]   one lane owns a word's channels
#ifndef KVRUN_KV_PAGE_H
#define KVRUN_KV_PAGE_H
#if defined(__CUDACC__)
#define KV_FN __host__ __device__ inline
#elif defined(__cplusplus)
#define KV_FN constexpr
#else
#define KV_FN
#endif
#ifdef __cplusplus
namespace kvrun {
using uint = unsigned int;
#endif

// Words of one token's codes in one kv head.
KV_FN uint kv_token_words(uint head_dim, uint bits) {
	return bits == 3u ? (head_dim * 2u + 31u) / 32u + (head_dim + 31u) / 32u : (head_dim * bits + 31u) / 32u;
}
// Words of a page's K (or V) codes, all kv heads.
KV_FN uint kv_code_words(uint n_kv_heads, uint head_dim, uint bits, uint page) {
	return n_kv_heads * kv_token_words(head_dim, bits) * page;
}
// Word offset inside a page's K codes / V codes.
KV_FN uint kv_k_word(uint head, uint word, uint token, uint head_dim, uint bits, uint page) {
	return (head * kv_token_words(head_dim, bits) + word) * page + token;
}
KV_FN uint kv_v_word(uint head, uint token, uint word, uint head_dim, uint bits, uint page) {
	return (head * page + token) * kv_token_words(head_dim, bits) + word;
}

// Parameters: one word per group, half2(scale, zero), scale in the low half;  x = scale * code + zero.
//   per token, K or V: [run][token], run = (head * head_dim + channel) / group: a run may span kv heads
//   per channel, K   : [kv head][channel], in the page (its group is the page) or in the parameter block of a
//                      compression, which all pages compressed together share
// In bytes (keys per channel of a page, values per token): the same order, 2 bytes per parameter, two parameters to a
// word; then for each kv head half2(largest scale, largest |zero|):
//   scale = byte 0 * largest scale / 255,  zero = (byte 1 - 128) * largest |zero| / 127
// A parameter block may also hold V's channel factors, after the K parameters: halves [kv head][channel], two per
// word;  x = (scale * code + zero) * factor.
KV_FN uint kv_token_param_words(uint n_kv_heads, uint head_dim, uint group, uint page) {
	return n_kv_heads * head_dim / group * page;
}
KV_FN uint kv_token_param(uint head, uint channel, uint token, uint head_dim, uint group, uint page) {
	return (head * head_dim + channel) / group * page + token;
}
KV_FN uint kv_channel_param_words(uint n_kv_heads, uint head_dim) { return n_kv_heads * head_dim; }
KV_FN uint kv_channel_param(uint head, uint channel, uint head_dim) { return head * head_dim + channel; }
// Word and half (0 low, 1 high) of a channel factor, relative to the first factor.
KV_FN uint kv_factor_words(uint n_kv_heads, uint head_dim) { return (n_kv_heads * head_dim + 1u) / 2u; }
KV_FN uint kv_factor_word(uint head, uint channel, uint head_dim) { return (head * head_dim + channel) / 2u; }
KV_FN uint kv_factor_half(uint head, uint channel, uint head_dim) { return (head * head_dim + channel) % 2u; }

// Number of words of n parameters in bytes, and the words of parameter i and of a kv head's largest values.
KV_FN uint kv_byte_param_words(uint n, uint n_kv_heads) { return n / 2u + (n_kv_heads + 3u) / 4u * 4u; }
KV_FN uint kv_byte_param_word(uint i) { return i / 2u; }
KV_FN uint kv_byte_largest_word(uint n, uint head) { return n / 2u + head; }
KV_FN float kv_255th(float largest) { return largest * 0.00392156863f; } // value of one unit of a byte
KV_FN float kv_127th(float largest) { return largest * 0.00787401575f; }

// Parameters of a page whose codes are of a codebook (Scale::Codebook), all kv heads:
//   x = norm of the token and head * value of the code + mean of the channel (keys that have one)
// in this order: norms [kv head][token], f16 or bytes; with bytes also half2(largest norm, 0) of each kv head, and a
// norm
// is byte * largest norm / 255; means, halves [kv head][channel].
KV_FN uint kv_norm_word(uint head, uint token, uint page, uint param_bits) {
	return (head * page + token) * param_bits / 32u;
}
KV_FN uint kv_norm_scale_word(uint n_kv_heads, uint head, uint page) { return n_kv_heads * page / 4u + head; }
KV_FN uint kv_norm_words(uint n_kv_heads, uint page, uint param_bits) {
	return n_kv_heads * page * param_bits / 32u + (param_bits == 8u ? (n_kv_heads + 3u) / 4u * 4u : 0u);
}
KV_FN uint kv_mean_word(uint n_kv_heads, uint head, uint channel, uint head_dim, uint page, uint param_bits) {
	return kv_norm_words(n_kv_heads, page, param_bits) + (head * head_dim + channel) / 2u;
}
KV_FN uint kv_mean_words(uint n_kv_heads, uint head_dim) { return (n_kv_heads * head_dim + 1u) / 2u; }

// The codebook of b bits, for values with mean 0 and variance 1: code i means u (linear + cubic u u), u = i - (2^b - 1)
// / 2. At 1 and 2 bits these are the Lloyd-Max values for a Gaussian; at 3 and 4 bits the cubic of least error, which
// is 0.2 % and 2 % above the error of Lloyd-Max.
KV_FN float kv_codebook_middle(uint bits) { return 0.5f * float((1u << bits) - 1u); }
KV_FN float kv_codebook_linear(uint bits) {
	return bits == 1u ? 1.59576912f : bits == 2u ? 0.89288694f : bits == 3u ? 0.47145525f : 0.24050716f;
}
KV_FN float kv_codebook_cubic(uint bits) {
	return bits == 1u ? 0.0f : bits == 2u ? 0.05069251f : bits == 3u ? 0.01158484f : 0.00209753f;
}

// A head of a token is quantised with several scales: its values are divided by their root mean square and multiplied
// by one of these factors, and the codes whose values v have the direction nearest to the head's y are kept: those of
// the largest (y . v)^2 / (v . v), of equal ones the first. At 1 bit the scale changes no code.
KV_FN uint kv_codebook_tries(uint bits) { return bits == 1u ? 1u : 8u; }
KV_FN float kv_codebook_factor(uint bits, uint i) { return bits == 1u ? 1.0f : 0.8125f + 0.0625f * float(i); }

// The rotation of a head: channels change sign where kv_sign() says so, then every block of 2^n channels, the largest
// power of two that divides head_dim, goes through a Hadamard transform, whose result is multiplied by
// kv_rotation_scale().
KV_FN uint kv_rotation_block(uint head_dim) { return head_dim & (~head_dim + 1u); }
// 1 / sqrt(block), the same bits everywhere. No loop: a shader's compiler would not unroll the loops around it.
KV_FN float kv_rotation_scale(uint block) {
	return ((block & 0xAAAAAAAAu) != 0u ? 0.70710678f : 1.0f) * (block >= 4u ? 0.5f : 1.0f) *
	       (block >= 16u ? 0.5f : 1.0f) * (block >= 64u ? 0.5f : 1.0f) * (block >= 256u ? 0.5f : 1.0f);
}
KV_FN bool kv_sign(uint channel) {
	uint x = channel * 0x9E3779B9u + 0x6B766EF7u; // a hash with a fixed seed
	x = (x ^ (x >> 16)) * 0x7FEB352Du;
	x = (x ^ (x >> 15)) * 0x846CA68Bu;
	return ((x ^ (x >> 16)) & 1u) != 0u;
}

#ifdef __cplusplus
}
#endif
#endif
