// Page layout of the KV cache. Read by C++, CUDA and GLSL: uint, float, #define and plain functions only.
//
// A page holds `page` tokens (32, 64 or 128) of one layer and one tier, for all kv heads, K codes and V codes apart.
// Codes are packed along channels whatever axis the scales run along: a word holds 32/bits neighbouring channels of
// one token, the lowest channel in the lowest bits; bits = 16 is plain f16.
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
KV_FN uint kv_token_words(uint head_dim, uint bits) { return (head_dim * bits + 31u) / 32u; }
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

#ifdef __cplusplus
}
#endif
#endif
