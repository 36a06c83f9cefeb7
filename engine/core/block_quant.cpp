// GGUF blocks and plain element types -> float.
#include "engine/core/block_quant.h"
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include <bit>
#include <cstdint>
#include <cstring>

namespace kvrun {
namespace {

using Bytes = const uint8_t*;

uint16_t u16_at(Bytes p) { return uint16_t(p[0] | p[1] << 8); }
float half_at(Bytes p) { return f16_to_f32(u16_at(p)); }

// f16_to_f32() with masks for branches, so that the compiler converts several elements of a row at a time.
float half_bits_to_float(uint32_t h) {
	const uint32_t exp_man = (h & 0x7fffu) << 13, sign = (h & 0x8000u) << 16;
	const uint32_t normal = exp_man + (112u << 23);
	// A subnormal half is m * 2^-24: put m below the leading one of 2^-14 and take 2^-14 away again, exactly.
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
	case DType::U32: break;
	}
	fail(Code::Invalid, "type {} holds no real numbers; only weights and activations can be converted to float",
	     dtype_info(type).name);
}

} // namespace kvrun
