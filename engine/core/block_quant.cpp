// GGUF blocks and plain element types -> float.
#include "engine/core/block_quant.h"
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include "engine/core/iq_grids.h"
#include "shaders/shared/weight_codes.h"
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvrun {
namespace {

using Bytes = const uint8_t*;

uint16_t u16_at(Bytes p) { return uint16_t(p[0] | p[1] << 8); }
uint32_t u32_at(Bytes p) { return uint32_t(u16_at(p)) | uint32_t(u16_at(p + 2)) << 16; }
float half_at(Bytes p) { return f16_to_f32(u16_at(p)); }

// f16_to_f32() with masks instead of branches, so that the compiler vectorises the conversion of a row.
float half_bits_to_float(uint32_t h) {
	const uint32_t exp_man = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
	const uint32_t normal = exp_man + (112u << 23);
	// A subnormal half is m * 2^-24: place m below the leading one of 2^-14, then subtract 2^-14, which is exact.
	const uint32_t tiny = std::bit_cast<uint32_t>(std::bit_cast<float>(exp_man + (113u << 23)) - 0x1p-14f);
	const uint32_t is_tiny = 0u - uint32_t(exp_man < (1u << 23)), is_special = 0u - uint32_t(exp_man >= (31u << 23));
	const uint32_t special = is_special & 0x7f800000u; // infinity, NaN with its payload
	return std::bit_cast<float>((tiny & is_tiny) | (normal & ~is_tiny) | special | sign);
}

void plain_f16(Bytes src, float* dst, size_t n) {
	for (size_t i = 0; i < n; ++i) {
		uint16_t h;
		std::memcpy(&h, src + 2 * i, 2);
		dst[i] = half_bits_to_float(h);
	}
}

void plain_bf16(Bytes src, float* dst, size_t n) {
	for (size_t i = 0; i < n; ++i) {
		uint16_t h;
		std::memcpy(&h, src + 2 * i, 2);
		dst[i] = bf16_to_f32(h);
	}
}

// 32 elements: [f16 d][32 x i8 q];  x = q * d
void block_q8_0(Bytes b, float* x) {
	const float d = half_at(b);
	for (int i = 0; i < 32; ++i) x[i] = float(int8_t(b[2 + i])) * d;
}

// 32 elements: [f16 d][16 x u8: element i low, element i + 16 high];  x = (q - 8) * d
void block_q4_0(Bytes b, float* x) {
	const float d = half_at(b);
	for (int i = 0; i < 16; ++i) {
		x[i] = float(int(b[2 + i] & 15) - 8) * d;
		x[i + 16] = float(int(b[2 + i] >> 4) - 8) * d;
	}
}

// 32 elements: [f16 d][f16 m][nibbles as in Q4_0];  x = q * d + m
void block_q4_1(Bytes b, float* x) {
	const float d = half_at(b), m = half_at(b + 2);
	for (int i = 0; i < 16; ++i) {
		x[i] = float(b[4 + i] & 15) * d + m;
		x[i + 16] = float(b[4 + i] >> 4) * d + m;
	}
}

// 32 elements: [f16 d][u32: fifth bit of element i at bit i][nibbles as in Q4_0];  x = (q - 16) * d
void block_q5_0(Bytes b, float* x) {
	const float d = half_at(b);
	const uint32_t high = u32_at(b + 2);
	for (int i = 0; i < 32; ++i) {
		const int q = int((b[6 + i % 16] >> i / 16 * 4) & 15) | int((high >> i) & 1) << 4;
		x[i] = float(q - 16) * d;
	}
}

// 32 elements: [f16 d][f16 m][u32 of fifth bits][nibbles];  x = q * d + m
void block_q5_1(Bytes b, float* x) {
	const float d = half_at(b), m = half_at(b + 2);
	const uint32_t high = u32_at(b + 4);
	for (int i = 0; i < 32; ++i) {
		const int q = int((b[8 + i % 16] >> i / 16 * 4) & 15) | int((high >> i) & 1) << 4;
		x[i] = float(q) * d + m;
	}
}

// Two bits of element 32 * run + i of 256 elements in 64 bytes: bit pair run % 4 of byte i of their half.
uint32_t pair_of(Bytes q, int run, int i) { return uint32_t(q[run / 4 * 32 + i] >> run % 4 * 2) & 3u; }

// 256 elements: [16 bytes: scale in the low nibble, min in the high one, of 16 elements][64 bytes of bit pairs][f16 d]
// [f16 dmin].  x = (d * scale) * q - dmin * min
void block_q2_k(Bytes b, float* x) {
	const float d = half_at(b + 80), dmin = half_at(b + 82);
	for (int i = 0; i < 256; ++i) {
		const float scale = d * float(b[i / 16] & 15), min = dmin * float(b[i / 16] >> 4);
		x[i] = scale * float(pair_of(b + 16, i / 32, i % 32)) - min;
	}
}

// Scale j of 16, six bits, in 12 bytes: the low four in nibble j / 8 of byte j % 8, the high two in pair j / 4 of byte
// 8 + j % 4.
int q3_scale(Bytes s, int j) { return int((s[j % 8] >> j / 8 * 4) & 15) | int((s[8 + j % 4] >> j / 4 * 2) & 3) << 4; }
// 256 elements: [32 bytes: third bit, `run` of byte i][64 bytes of bit pairs][12 bytes of scales][f16 d].
// x = (d * (scale - 32)) * (q - 4)
void block_q3_k(Bytes b, float* x) {
	const float d = half_at(b + 108);
	for (int i = 0; i < 256; ++i) {
		const float scale = d * float(q3_scale(b + 96, i / 16) - 32);
		const int q = int(pair_of(b + 32, i / 32, i % 32)) | int((b[i % 32] >> i / 32) & 1) << 2;
		x[i] = scale * float(q - 4);
	}
}

// The values of 4-bit codes: of IQ4_NL and IQ4_XS; twice those of 4-bit floats.
constexpr float kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr float kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 32 elements: [f16 d][nibbles as in Q4_0];  x = d * value
void block_iq4_nl(Bytes b, float* x) {
	const float d = half_at(b);
	for (int i = 0; i < 32; ++i) x[i] = d * kIq4[(b[2 + i % 16] >> i / 16 * 4) & 15];
}

// 256 elements: [f16 d][u16 of high scale bits][4 bytes of low scale nibbles][128 bytes of nibbles, 16 for each 32
// elements as in Q4_0].  x = (d * (scale - 32)) * value
int iq4_scale(Bytes b, int run) {
	return int((b[4 + run / 2] >> run % 2 * 4) & 15) | int((u16_at(b + 2) >> 2 * run) & 3) << 4;
}
void block_iq4_xs(Bytes b, float* x) {
	const float d = half_at(b);
	for (int run = 0; run < 8; ++run) {
		const float scale = d * float(iq4_scale(b, run) - 32);
		for (int i = 0; i < 32; ++i) x[run * 32 + i] = scale * kIq4[(b[8 + run * 16 + i % 16] >> i / 16 * 4) & 15];
	}
}

// 32 elements: [u8 e][nibbles as in Q4_0];  x = 2^(e - 128) * value
void block_mxfp4(Bytes b, float* x) {
	const float d = std::ldexp(1.f, int(b[0]) - 128);
	for (int i = 0; i < 32; ++i) x[i] = d * kFp4[(b[1 + i % 16] >> i / 16 * 4) & 15];
}

// Half of an unsigned E4M3 number: four bits of exponent, bias 7, and three of mantissa; bit 7 is ignored. GGML reads
// the NaN code as 0, unless bit 7 is set.
float e4m3_half(uint8_t x) {
	if (x == 0x7f) return 0;
	const int e = x >> 3 & 15, m = x & 7;
	return e == 0 ? std::ldexp(float(m), -10) : std::ldexp(float(8 + m), e - 11);
}
// 64 elements: [4 x E4M3 scale, of 16 elements each][for each of them 8 bytes: element i low, element i + 8 high].
// x = scale / 2 * value
void block_nvfp4(Bytes b, float* x) {
	for (int i = 0; i < 64; ++i) {
		const Bytes q = b + 4 + i / 16 * 8;
		x[i] = e4m3_half(b[i / 16]) * kFp4[(q[i % 8] >> i % 16 / 8 * 4) & 15];
	}
}

// Ternary digit n of a byte, which stores a number below 243 as a fraction of 256, rounded up.
int trit_of(uint8_t byte, int n) {
	constexpr int kPower[] = {1, 3, 9, 27, 81};
	return (byte * kPower[n] & 255) * 3 >> 8;
}
// Digit of element i of a TQ1_0 block: 32 bytes of 160 elements, 16 of 80, 4 of 16.
int tq1_digit(Bytes b, int i) {
	if (i < 160) return trit_of(b[i % 32], i / 32);
	if (i < 240) return trit_of(b[32 + i % 16], (i - 160) / 16);
	return trit_of(b[48 + i % 4], (i - 240) / 4);
}
// 256 elements: [48 bytes of five digits][4 bytes of four digits][f16 d];  x = (digit - 1) * d
void block_tq1_0(Bytes b, float* x) {
	const float d = half_at(b + 52);
	for (int i = 0; i < 256; ++i) x[i] = float(tq1_digit(b, i) - 1) * d;
}

// 256 elements: [64 bytes of bit pairs][f16 d];  x = (q - 1) * d
void block_tq2_0(Bytes b, float* x) {
	const float d = half_at(b + 64);
	for (int i = 0; i < 256; ++i) x[i] = float(int(pair_of(b, i / 32, i % 32)) - 1) * d;
}

// Elements of an IQ type: entry e (n = 8 or 4 elements) of the grid that begins at word `grid`, times `scale`; negative
// where `signs` has a set bit. Every product is exact.
void grid_elements(uint32_t grid, uint32_t e, int n, uint32_t signs, float scale, float* x) {
	for (int i = 0; i < n; ++i) {
		const uint32_t word = iq_grids()[grid + e * uint32_t(n) / 4 + uint32_t(i) / 4];
		const float value = scale * float(word >> i % 4 * 8 & 255);
		x[i] = signs >> i & 1 ? -value : value;
	}
}
// Signs of 8 elements from 7 bits: the number of negative elements is even.
uint32_t even_signs(uint32_t s) { return s | uint32_t(std::popcount(s) & 1) << 7; }

// 256 elements: [f16 d][for each 32: 4 bytes of entries, u32 of 4 x 7 bits of signs and 4 bits of scale].
// x = d * (scale + 1/2) / 4 * element
void block_iq2_xxs(Bytes b, float* x) {
	const float d = half_at(b);
	for (int run = 0; run < 8; ++run) {
		const Bytes q = b + 2 + 8 * run;
		const uint32_t bits = u32_at(q + 4);
		const float scale = d * (0.5f + float(bits >> 28)) * 0.25f;
		for (int l = 0; l < 4; ++l)
			grid_elements(GRID_IQ2_XXS, q[l], 8, even_signs(bits >> 7 * l & 127), scale, x + run * 32 + l * 8);
	}
}

// 256 elements: [f16 d][32 x u16: 9 bits of entry, 7 of signs][8 bytes of scales, a nibble for each 16 elements].
void block_iq2_xs(Bytes b, float* x) {
	const float d = half_at(b);
	for (int l = 0; l < 32; ++l) {
		const uint32_t q = u16_at(b + 2 + 2 * l);
		const float scale = d * (0.5f + float(b[66 + l / 4] >> l / 2 % 2 * 4 & 15)) * 0.25f;
		grid_elements(GRID_IQ2_XS, q & 511, 8, even_signs(q >> 9), scale, x + l * 8);
	}
}

// 256 elements: [f16 d][32 bytes of entries][32 bytes of signs][8 bytes: two upper bits of each entry][8 bytes of
// scales].
void block_iq2_s(Bytes b, float* x) {
	const float d = half_at(b);
	for (int l = 0; l < 32; ++l) {
		const uint32_t e = b[2 + l] | uint32_t(b[66 + l / 4] >> l % 4 * 2 & 3) << 8;
		const float scale = d * (0.5f + float(b[74 + l / 4] >> l / 2 % 2 * 4 & 15)) * 0.25f;
		grid_elements(GRID_IQ2_S, e, 8, b[34 + l], scale, x + l * 8);
	}
}

// 256 elements: [f16 d][64 bytes of entries of 4][for each 32 elements u32 of 4 x 7 bits of signs and 4 bits of scale].
// x = d * (scale + 1/2) / 2 * element
void block_iq3_xxs(Bytes b, float* x) {
	const float d = half_at(b);
	for (int l = 0; l < 64; ++l) {
		const uint32_t bits = u32_at(b + 66 + l / 8 * 4), signs = even_signs(bits >> l / 2 % 4 * 7 & 127);
		grid_elements(GRID_IQ3_XXS, b[2 + l], 4, signs >> l % 2 * 4, d * (0.5f + float(bits >> 28)) * 0.5f, x + l * 4);
	}
}

// 256 elements: [f16 d][64 bytes of entries][8 bytes: bit l % 8 is the ninth of entry l][32 bytes of signs][4 bytes of
// scales, a nibble for each 32].  x = d * (1 + 2 scale) * element
void block_iq3_s(Bytes b, float* x) {
	const float d = half_at(b);
	for (int l = 0; l < 64; ++l) {
		const uint32_t e = b[2 + l] | uint32_t(b[66 + l / 8] >> l % 8 & 1) << 8, signs = b[74 + l / 2];
		const float scale = d * float(1 + 2 * (b[106 + l / 16] >> l / 8 % 2 * 4 & 15));
		grid_elements(GRID_IQ3_S, e, 4, signs >> l % 2 * 4, scale, x + l * 4);
	}
}

// Elements of IQ1: -1, 0 or 1, plus or (less) minus 1/8.
void ternary_elements(uint32_t e, bool less, float scale, float* x) {
	for (uint32_t i = 0; i < 8; ++i) {
		const float element = float(iq_grids()[GRID_IQ1 + 2 * e + i / 4] >> i % 4 * 8 & 255) / 8 - 1;
		x[i] = scale * (element + (less ? -0.125f : 0.125f));
	}
}

// 256 elements: [f16 d][32 bytes of entries][for each 32 u16: 4 x 3 upper bits of entries, 3 bits of scale, a sign].
// x = d * (2 scale + 1) * (element + or - 1/8)
void block_iq1_s(Bytes b, float* x) {
	const float d = half_at(b);
	for (int l = 0; l < 32; ++l) {
		const uint32_t high = u16_at(b + 34 + l / 4 * 2);
		const float scale = d * float(2 * (high >> 12 & 7) + 1);
		ternary_elements(b[2 + l] | (high >> l % 4 * 3 & 7) << 8, high >> 15, scale, x + l * 8);
	}
}

// 256 elements: [32 bytes of entries][16 bytes: for each entry 3 upper bits and a sign][4 x u16: 4 x 3 bits of scale,
// one for each 16 elements, and nibble i of d as the upper four bits].
void block_iq1_m(Bytes b, float* x) {
	uint32_t half = 0;
	for (int i = 0; i < 4; ++i) half |= uint32_t(u16_at(b + 48 + 2 * i) >> 12) << 4 * i;
	const float d = f16_to_f32(uint16_t(half));
	for (int l = 0; l < 32; ++l) {
		const uint32_t high = b[32 + l / 2] >> l % 2 * 4 & 15u, scales = u16_at(b + 48 + l / 8 * 2);
		const float scale = d * float(2 * (scales >> l / 2 % 4 * 3 & 7) + 1);
		ternary_elements(b[l] | (high & 7) << 8, high >> 3, scale, x + l * 8);
	}
}

// The 8 six-bit (scale, min) pairs of a Q4_K or Q5_K block, in 12 bytes s: pairs 0..3 are the low six bits of s[j] and
// s[4 + j]; pairs 4..7 have their low four bits in the nibbles of s[4 + j] and their high two on top of s[j - 4], s[j].
struct ScaleMin {
	float scale[8], min[8]; // 0..63 each, not yet multiplied by d, dmin
};
ScaleMin scale_min(Bytes s) {
	ScaleMin r;
	for (int j = 0; j < 4; ++j) {
		r.scale[j] = float(s[j] & 63);
		r.min[j] = float(s[4 + j] & 63);
		r.scale[4 + j] = float((s[8 + j] & 15) | (s[j] >> 6) << 4);
		r.min[4 + j] = float((s[8 + j] >> 4) | (s[4 + j] >> 6) << 4);
	}
	return r;
}

// 256 elements: [f16 d][f16 dmin][12 bytes of scales][128 bytes of nibbles], 8 runs of 32 elements.
// x = (d * scale) * q - dmin * min;  runs 2r and 2r + 1 are the low and high nibbles of bytes 32r .. 32r + 31.
void block_q4_k(Bytes b, float* x) {
	const float d = half_at(b), dmin = half_at(b + 2);
	const ScaleMin s = scale_min(b + 4);
	for (int run = 0; run < 8; ++run) {
		const Bytes q = b + 16 + run / 2 * 32;
		const float scale = d * s.scale[run], min = dmin * s.min[run];
		const int shift = run % 2 * 4;
		for (int i = 0; i < 32; ++i) x[run * 32 + i] = scale * float((q[i] >> shift) & 15) - min;
	}
}

// As Q4_K with a fifth bit: [f16 d][f16 dmin][12 bytes of scales][32 bytes: bit `run` of byte i][128 bytes of nibbles].
void block_q5_k(Bytes b, float* x) {
	const float d = half_at(b), dmin = half_at(b + 2);
	const ScaleMin s = scale_min(b + 4);
	const Bytes high = b + 16;
	for (int run = 0; run < 8; ++run) {
		const Bytes q = b + 48 + run / 2 * 32;
		const float scale = d * s.scale[run], min = dmin * s.min[run];
		const int shift = run % 2 * 4;
		for (int i = 0; i < 32; ++i)
			x[run * 32 + i] = scale * float(((q[i] >> shift) & 15) | ((high[i] >> run) & 1) << 4) - min;
	}
}

// 256 elements: [128 bytes of low nibbles][64 bytes of high bit pairs][16 x i8 scale][f16 d], 16 elements per scale.
// x = (d * scale) * (q - 32);  in each half of 128 elements, run r of 32 takes nibble r / 2 of bytes 32 (r % 2) + i
// and bit pair r of byte i.
void block_q6_k(Bytes b, float* x) {
	const float d = half_at(b + 208);
	for (int run = 0; run < 8; ++run) {
		const int half = run / 4, r = run % 4;
		const Bytes low = b + half * 64 + r % 2 * 32, high = b + 128 + half * 32;
		const int low_shift = r / 2 * 4, high_shift = r * 2;
		for (int i = 0; i < 32; ++i) {
			const float scale = d * float(int8_t(b[192 + run * 2 + i / 16]));
			const int q = ((low[i] >> low_shift) & 15) | ((high[i] >> high_shift) & 3) << 4;
			x[run * 32 + i] = scale * float(q - 32);
		}
	}
}

// 128 elements: [f16 d][16 bytes: bit i % 8 of byte i / 8].  x = d where the bit is set, else -d
void block_q1_0(Bytes b, float* x) {
	const float d = half_at(b);
	for (int i = 0; i < 128; ++i) x[i] = b[2 + i / 8] >> i % 8 & 1 ? d : -d;
}

// n elements: [f16 d][n / 4 bytes: bit pair i % 4 of byte i / 4].  x = d * (q - 1)
template <int n> void block_q2_0(Bytes b, float* x) {
	const float d = half_at(b);
	for (int i = 0; i < n; ++i) x[i] = d * float((b[2 + i / 4] >> i % 4 * 2 & 3) - 1);
}

void each_block(DType type, void (*block)(Bytes, float*), Bytes src, float* dst, size_t n) {
	const DTypeInfo info = dtype_info(type);
	KV_ASSERT(n % info.block == 0);
	for (size_t i = 0; i < n / info.block; ++i) block(src + i * info.bytes, dst + i * info.block);
}

} // namespace

void dequantise_row(DType type, const std::byte* src, float* dst, size_t n) {
	const Bytes s = reinterpret_cast<Bytes>(src);
	switch (type) {
	case DType::F32: std::memcpy(dst, s, n * 4); return;
	case DType::F16: return plain_f16(s, dst, n);
	case DType::BF16: return plain_bf16(s, dst, n);
	case DType::Q8_0: return each_block(type, block_q8_0, s, dst, n);
	case DType::Q4_0: return each_block(type, block_q4_0, s, dst, n);
	case DType::Q4_1: return each_block(type, block_q4_1, s, dst, n);
	case DType::Q4_K: return each_block(type, block_q4_k, s, dst, n);
	case DType::Q5_K: return each_block(type, block_q5_k, s, dst, n);
	case DType::Q6_K: return each_block(type, block_q6_k, s, dst, n);
	case DType::Q5_0: return each_block(type, block_q5_0, s, dst, n);
	case DType::Q5_1: return each_block(type, block_q5_1, s, dst, n);
	case DType::Q2_K: return each_block(type, block_q2_k, s, dst, n);
	case DType::Q3_K: return each_block(type, block_q3_k, s, dst, n);
	case DType::IQ4_NL: return each_block(type, block_iq4_nl, s, dst, n);
	case DType::IQ4_XS: return each_block(type, block_iq4_xs, s, dst, n);
	case DType::MXFP4: return each_block(type, block_mxfp4, s, dst, n);
	case DType::NVFP4: return each_block(type, block_nvfp4, s, dst, n);
	case DType::IQ2_XXS: return each_block(type, block_iq2_xxs, s, dst, n);
	case DType::IQ2_XS: return each_block(type, block_iq2_xs, s, dst, n);
	case DType::IQ2_S: return each_block(type, block_iq2_s, s, dst, n);
	case DType::IQ3_XXS: return each_block(type, block_iq3_xxs, s, dst, n);
	case DType::IQ3_S: return each_block(type, block_iq3_s, s, dst, n);
	case DType::IQ1_S: return each_block(type, block_iq1_s, s, dst, n);
	case DType::IQ1_M: return each_block(type, block_iq1_m, s, dst, n);
	case DType::TQ1_0: return each_block(type, block_tq1_0, s, dst, n);
	case DType::TQ2_0: return each_block(type, block_tq2_0, s, dst, n);
	case DType::Q1_0: return each_block(type, block_q1_0, s, dst, n);
	case DType::Q2_0: return each_block(type, block_q2_0<64>, s, dst, n);
	case DType::Q2_0_128: return each_block(type, block_q2_0<128>, s, dst, n);
	case DType::I64:
	case DType::U32: break;
	}
	fail(Code::Invalid, "type {} holds no real numbers; only weights and activations can be converted to float",
	     dtype_info(type).name);
}

} // namespace kvrun
