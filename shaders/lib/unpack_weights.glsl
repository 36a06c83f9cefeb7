// Weight rows (shared/weight_row.h) to floats, in units of 16 consecutive elements: element = scale * code - min.
//
// The includer defines WTYPE (a constant; all branches on it fold) and the loads its device is good at:
//   WEIGHT_PIECE(i)  uvec4, 16-byte piece i of the bound array; always
//   WEIGHT_PAIR(i)   uvec2 i, WEIGHT_WORD(i) uint i; only for weight_unit() and weight_unit_scale()
#include "shared/weight_row.h"

struct WeightUnit { uvec4 a, b, c, d; }; // raw words; F32 a..d, F16 and BF16 a b, Q8_0 a, others a.xy and high bits a.z

const bool WEIGHT_PLAIN = WTYPE <= W_BF16;                     // no scale
const bool WEIGHT_MIN = WTYPE == W_Q4_0 || WTYPE >= W_Q4_K;    // code counts from below the smallest element

vec4 weight_bytes(uint w) { return vec4(w & 255u, (w >> 8) & 255u, (w >> 16) & 255u, w >> 24); }
vec4 weight_signed_bytes(uint w) {
	const int s = int(w);
	return vec4(bitfieldExtract(s, 0, 8), bitfieldExtract(s, 8, 8), bitfieldExtract(s, 16, 8), s >> 24);
}
vec4 weight_bf16(uvec2 w) { return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u)); }

// Codes of elements 4i .. 4i + 3 of a unit of quantised weights, as bytes: signed ones of Q8_0, else unsigned.
uint weight_code_bytes(WeightUnit r, uint i) {
	if (WTYPE == W_Q8_0) return r.a[i];
	uint code = (r.a[i & 1u] >> (i < 2u ? 0u : 4u)) & 0x0f0f0f0fu;
	if (WTYPE == W_Q5_K) code |= ((r.a.z >> i) & 0x01010101u) << 4;
	if (WTYPE == W_Q6_K) code |= ((r.a.z >> (2u * i)) & 0x03030303u) << 4;
	return code;
}
// The same as floats, of any type.
vec4 weight_quad(WeightUnit r, uint i) {
	if (WTYPE == W_F32) return uintBitsToFloat(i == 0u ? r.a : i == 1u ? r.b : i == 2u ? r.c : r.d);
	if (WTYPE <= W_BF16) {
		const uvec4 v = i < 2u ? r.a : r.b;
		const uvec2 h = (i & 1u) == 0u ? v.xy : v.zw;
		return WTYPE == W_F16 ? vec4(unpackHalf2x16(h.x), unpackHalf2x16(h.y)) : weight_bf16(h);
	}
	const uint code = weight_code_bytes(r, i);
	return WTYPE == W_Q8_0 ? weight_signed_bytes(code) : weight_bytes(code);
}

// {scale, min} of run r (32 elements) of a Q4_K or Q5_K piece of scales.
vec2 weight_k_scale(uvec4 head, uint r) {
	const uint scale = ((head.y >> (4u * r)) & 15u) | ((head.w >> (2u * r)) & 3u) << 4;
	const uint low = ((head.z >> (4u * r)) & 15u) | ((head.w >> (2u * r + 16u)) & 3u) << 4;
	return unpackHalf2x16(head.x) * vec2(scale, low);
}
// {scale, min} of a unit whose format's factor is d and, for Q6_K, whose own scale is the signed byte `byte` of `word`.
vec2 weight_d_scale(float d, uint word, uint byte) {
	const float s = WTYPE == W_Q6_K ? d * float(bitfieldExtract(int(word), int(8u * byte), 8)) : d;
	return vec2(s, WTYPE == W_Q6_K ? 32.0 * s : WTYPE == W_Q4_0 ? 8.0 * s : 0.0);
}
float weight_half(uint word, uint which) { return unpackHalf2x16(word >> (16u * (which & 1u))).x; }

uint weight_component(uvec4 v, uint i) { return (i & 2u) == 0u ? ((i & 1u) == 0u ? v.x : v.y) : ((i & 1u) == 0u ? v.z : v.w); }

#ifdef WEIGHT_WORD
// Unit u of the row that starts at piece `row`.
WeightUnit weight_unit(uint row, uint u, uint cols) {
	WeightUnit r;
	if (WTYPE == W_F32) {
		r.a = WEIGHT_PIECE(row + 4u * u);
		r.b = WEIGHT_PIECE(row + 4u * u + 1u);
		r.c = WEIGHT_PIECE(row + 4u * u + 2u);
		r.d = WEIGHT_PIECE(row + 4u * u + 3u);
	} else if (WTYPE <= W_BF16) {
		r.a = WEIGHT_PIECE(row + 2u * u);
		r.b = WEIGHT_PIECE(row + 2u * u + 1u);
	} else if (WTYPE == W_Q8_0) {
		r.a = WEIGHT_PIECE(row + u);
	} else {
		r.a.xy = WEIGHT_PAIR(2u * row + u);
		if (WTYPE == W_Q5_K)
			r.a.z = WEIGHT_WORD(4u * (row + weight_high_at(WTYPE, cols)) + (u >> 1)) >> (4u * (u & 1u));
		if (WTYPE == W_Q6_K) r.a.z = WEIGHT_WORD(4u * (row + weight_high_at(WTYPE, cols)) + u);
	}
	return r;
}

// {scale, min} of the same unit.
vec2 weight_unit_scale(uint row, uint u, uint cols) {
	if (WEIGHT_PLAIN) return vec2(1.0, 0.0);
	const uint at = row + weight_scales_at(WTYPE, cols);
	if (WTYPE == W_Q4_K || WTYPE == W_Q5_K) return weight_k_scale(WEIGHT_PIECE(at + (u >> 4)), (u >> 1) & 7u);
	if (WTYPE == W_Q6_K) {
		const uint factor = WEIGHT_WORD(4u * (row + weight_factors_at(WTYPE, cols)) + (u >> 5));
		return weight_d_scale(weight_half(factor, u >> 4), WEIGHT_WORD(4u * at + (u >> 2)), u & 3u);
	}
	return weight_d_scale(weight_half(WEIGHT_WORD(4u * at + (u >> 2)), u >> 1), 0u, 0u);
}
#endif

#ifdef WEIGHT_BLOCKS
// Block b (units 2b and 2b + 1) of the row that starts at piece `row`, by piece loads only.
void weight_block(uint row, uint b, uint cols, out WeightUnit lower, out WeightUnit upper) {
	if (WTYPE == W_F32) {
		const uint at = row + 8u * b;
		lower = WeightUnit(WEIGHT_PIECE(at), WEIGHT_PIECE(at + 1u), WEIGHT_PIECE(at + 2u), WEIGHT_PIECE(at + 3u));
		upper = WeightUnit(WEIGHT_PIECE(at + 4u), WEIGHT_PIECE(at + 5u), WEIGHT_PIECE(at + 6u), WEIGHT_PIECE(at + 7u));
	} else if (WTYPE <= W_BF16) {
		const uint at = row + 4u * b;
		lower.a = WEIGHT_PIECE(at);
		lower.b = WEIGHT_PIECE(at + 1u);
		upper.a = WEIGHT_PIECE(at + 2u);
		upper.b = WEIGHT_PIECE(at + 3u);
	} else if (WTYPE == W_Q8_0) {
		lower.a = WEIGHT_PIECE(row + 2u * b);
		upper.a = WEIGHT_PIECE(row + 2u * b + 1u);
	} else {
		const uvec4 codes = WEIGHT_PIECE(row + b);
		lower.a.xy = codes.xy;
		upper.a.xy = codes.zw;
		const uint high = row + weight_high_at(WTYPE, cols);
		if (WTYPE == W_Q5_K) {
			lower.a.z = weight_component(WEIGHT_PIECE(high + (b >> 2)), b);
			upper.a.z = lower.a.z >> 4;
		}
		if (WTYPE == W_Q6_K) {
			const uvec4 two = WEIGHT_PIECE(high + (b >> 1));
			lower.a.z = (b & 1u) == 0u ? two.x : two.z;
			upper.a.z = (b & 1u) == 0u ? two.y : two.w;
		}
	}
}

struct WeightScales { uvec4 head; float factor; }; // of 8 blocks, 256 elements

WeightScales weight_scales(uint row, uint chunk, uint cols) {
	WeightScales s;
	s.head = WEIGHT_PIECE(row + weight_scales_at(WTYPE, cols) + chunk);
	if (WTYPE == W_Q6_K) {
		const uvec4 eight = WEIGHT_PIECE(row + weight_factors_at(WTYPE, cols) + (chunk >> 3));
		s.factor = weight_half(weight_component(eight, chunk >> 1), chunk);
	}
	return s;
}

// {scale, min} of the lower and the upper unit of block b of the chunk.
vec4 weight_block_scale(WeightScales s, uint b) {
	if (WTYPE == W_Q4_K || WTYPE == W_Q5_K) return weight_k_scale(s.head, b).xyxy;
	const uint word = weight_component(s.head, b >> 1);
	if (WTYPE == W_Q6_K)
		return vec4(weight_d_scale(s.factor, word, 2u * (b & 1u)), weight_d_scale(s.factor, word, 2u * (b & 1u) + 1u));
	return weight_d_scale(weight_half(word, b), 0u, 0u).xyxy;
}
#endif
