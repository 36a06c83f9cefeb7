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

#ifdef __cplusplus
}
#endif
#endif
