// Weight rows (shared/weight_row.h) to floats, in units of 16 consecutive elements: element = scale * code - min.
//
// The includer defines WTYPE (a constant; all branches on it fold) and the loads its device is good at:
//   WEIGHT_PIECE(i)  uvec4, 16-byte piece i of the bound array; always
//   WEIGHT_PAIR(i)   uvec2 i, WEIGHT_WORD(i) uint i; only for weight_unit() and weight_unit_scale()
#include "shared/weight_codes.h"

#define KV_PICK(id, value) WTYPE == id ? value :
#define KV_PICK_CODES(n, id, f, e, b, d, r, m, codes, cb, high, scale, sb, fb, zero, int8) KV_PICK(id, codes)
#define KV_PICK_CODE_BYTES(n, id, f, e, b, d, r, m, codes, cb, high, scale, sb, fb, zero, int8) KV_PICK(id, cb)
#define KV_PICK_HIGH(n, id, f, e, b, d, r, m, codes, cb, high, scale, sb, fb, zero, int8) KV_PICK(id, high)
#define KV_PICK_SCALE(n, id, f, e, b, d, r, m, codes, cb, high, scale, sb, fb, zero, int8) KV_PICK(id, scale)
#define KV_PICK_SCALE_BYTES(n, id, f, e, b, d, r, m, codes, cb, high, scale, sb, fb, zero, int8) KV_PICK(id, sb)
#define KV_PICK_FACTOR_BYTES(n, id, f, e, b, d, r, m, codes, cb, high, scale, sb, fb, zero, int8) KV_PICK(id, fb)
#define KV_PICK_ZERO(n, id, f, e, b, d, r, m, codes, cb, high, scale, sb, fb, zero, int8) KV_PICK(id, zero)
const uint WEIGHT_CODES = KV_TENSOR_TYPES(KV_PICK_CODES) 0u, WEIGHT_HIGH = KV_TENSOR_TYPES(KV_PICK_HIGH) 0u,
           WEIGHT_SCALE = KV_TENSOR_TYPES(KV_PICK_SCALE) 0u, WEIGHT_ZERO = KV_TENSOR_TYPES(KV_PICK_ZERO) 0u;
const uint WEIGHT_CODE_BYTES = KV_TENSOR_TYPES(KV_PICK_CODE_BYTES) 0u,
           WEIGHT_SCALE_BYTES = KV_TENSOR_TYPES(KV_PICK_SCALE_BYTES) 0u,
           WEIGHT_FACTOR_BYTES = KV_TENSOR_TYPES(KV_PICK_FACTOR_BYTES) 0u;
#define WEIGHT                                                                                                         \
	WeightTraits(WEIGHT_CODES, WEIGHT_CODE_BYTES, WEIGHT_HIGH, WEIGHT_SCALE, WEIGHT_SCALE_BYTES, WEIGHT_FACTOR_BYTES,  \
	             WEIGHT_ZERO)

struct WeightUnit { uvec4 a, b, c, d; }; // raw words; CODE_F32 a..d, F16 and BF16 a b, BYTE a, others a.xy and high bits a.z

const bool WEIGHT_PLAIN = WEIGHT_SCALE == SCALE_NONE;
const bool WEIGHT_OWN_MIN = WEIGHT_SCALE == SCALE_HALF_MIN || WEIGHT_SCALE == SCALE_K; // min is no multiple of scale
const bool WEIGHT_MIN = WEIGHT_OWN_MIN || WEIGHT_ZERO > 0u; // code counts from below the smallest element
const bool WEIGHT_BY_HALVES = WEIGHT_SCALE == SCALE_BYTE;   // the two units of a block have scales of their own
const bool WEIGHT_SIGNED = WEIGHT_CODES == CODE_BYTE;       // codes are signed bytes

vec4 weight_bytes(uint w) { return vec4(w & 255u, (w >> 8) & 255u, (w >> 16) & 255u, w >> 24); }
vec4 weight_signed_bytes(uint w) {
	const int s = int(w);
	return vec4(bitfieldExtract(s, 0, 8), bitfieldExtract(s, 8, 8), bitfieldExtract(s, 16, 8), s >> 24);
}
vec4 weight_bf16(uvec2 w) { return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u)); }

// Codes of elements 4i .. 4i + 3 of a unit of quantised weights, as bytes.
uint weight_code_bytes(WeightUnit r, uint i) {
	if (WEIGHT_CODES == CODE_BYTE) return r.a[i];
	uint code = weight_nibbles(r.a.x, r.a.y, i);
	if (WEIGHT_HIGH == 4u) code |= weight_high_bit(r.a.z, i, 4u);
	if (WEIGHT_HIGH == 8u) code |= weight_high_bits(r.a.z, i, 4u);
	return code;
}
// The same as floats, of any type.
vec4 weight_quad(WeightUnit r, uint i) {
	if (WEIGHT_CODES == CODE_F32) return uintBitsToFloat(i == 0u ? r.a : i == 1u ? r.b : i == 2u ? r.c : r.d);
	if (WEIGHT_CODES == CODE_F16 || WEIGHT_CODES == CODE_BF16) {
		const uvec4 v = i < 2u ? r.a : r.b;
		const uvec2 h = (i & 1u) == 0u ? v.xy : v.zw;
		return WEIGHT_CODES == CODE_F16 ? vec4(unpackHalf2x16(h.x), unpackHalf2x16(h.y)) : weight_bf16(h);
	}
	const uint code = weight_code_bytes(r, i);
	return WEIGHT_SIGNED ? weight_signed_bytes(code) : weight_bytes(code);
}

// {scale, min} of run r (32 elements) of a piece of SCALE_K.
vec2 weight_k_pair(uvec4 head, uint r) {
	return unpackHalf2x16(head.x) * vec2(weight_k_scale(head.y, head.w, r), weight_k_min(head.z, head.w, r));
}
// {scale, min} of a unit from its scale.
vec2 weight_zero_pair(float s) { return vec2(s, WEIGHT_ZERO > 0u ? float(WEIGHT_ZERO) * s : 0.0); }
// The same with factor d and signed byte `byte` of `word`.
vec2 weight_byte_pair(float d, uint word, uint byte) {
	return weight_zero_pair(d * float(bitfieldExtract(int(word), int(8u * byte), 8)));
}
vec2 weight_half_min_pair(uint word) { return unpackHalf2x16(word) * vec2(1.0, -1.0); }
float weight_half(uint word, uint which) { return unpackHalf2x16(word >> (16u * (which & 1u))).x; }

uint weight_component(uvec4 v, uint i) { return (i & 2u) == 0u ? ((i & 1u) == 0u ? v.x : v.y) : ((i & 1u) == 0u ? v.z : v.w); }

#ifdef WEIGHT_WORD
// Unit u of the row that starts at piece `row`.
WeightUnit weight_unit(uint row, uint u, uint cols) {
	WeightUnit r;
	if (WEIGHT_CODES == CODE_F32) {
		r.a = WEIGHT_PIECE(row + 4u * u);
		r.b = WEIGHT_PIECE(row + 4u * u + 1u);
		r.c = WEIGHT_PIECE(row + 4u * u + 2u);
		r.d = WEIGHT_PIECE(row + 4u * u + 3u);
	} else if (WEIGHT_CODES == CODE_F16 || WEIGHT_CODES == CODE_BF16) {
		r.a = WEIGHT_PIECE(row + 2u * u);
		r.b = WEIGHT_PIECE(row + 2u * u + 1u);
	} else if (WEIGHT_CODES == CODE_BYTE) {
		r.a = WEIGHT_PIECE(row + u);
	} else {
		r.a.xy = WEIGHT_PAIR(2u * row + u);
		if (WEIGHT_HIGH == 4u) r.a.z = WEIGHT_WORD(4u * (row + weight_high_at(WEIGHT, cols)) + (u >> 1)) >> (4u * (u & 1u));
		if (WEIGHT_HIGH == 8u) r.a.z = WEIGHT_WORD(4u * (row + weight_high_at(WEIGHT, cols)) + u);
	}
	return r;
}

// {scale, min} of the same unit.
vec2 weight_unit_scale(uint row, uint u, uint cols) {
	if (WEIGHT_PLAIN) return vec2(1.0, 0.0);
	const uint at = row + weight_scales_at(WEIGHT, cols);
	if (WEIGHT_SCALE == SCALE_K) return weight_k_pair(WEIGHT_PIECE(at + (u >> 4)), (u >> 1) & 7u);
	if (WEIGHT_SCALE == SCALE_HALF_MIN) return weight_half_min_pair(WEIGHT_WORD(4u * at + (u >> 1)));
	if (WEIGHT_SCALE == SCALE_BYTE) {
		const uint factor = WEIGHT_WORD(4u * (row + weight_factors_at(WEIGHT, cols)) + (u >> 5));
		return weight_byte_pair(weight_half(factor, u >> 4), WEIGHT_WORD(4u * at + (u >> 2)), u & 3u);
	}
	return weight_zero_pair(weight_half(WEIGHT_WORD(4u * at + (u >> 2)), u >> 1));
}
#endif

#ifdef WEIGHT_BLOCKS
// Block b (units 2b and 2b + 1) of the row that starts at piece `row`, by piece loads only.
void weight_block(uint row, uint b, uint cols, out WeightUnit lower, out WeightUnit upper) {
	if (WEIGHT_CODES == CODE_F32) {
		const uint at = row + 8u * b;
		lower = WeightUnit(WEIGHT_PIECE(at), WEIGHT_PIECE(at + 1u), WEIGHT_PIECE(at + 2u), WEIGHT_PIECE(at + 3u));
		upper = WeightUnit(WEIGHT_PIECE(at + 4u), WEIGHT_PIECE(at + 5u), WEIGHT_PIECE(at + 6u), WEIGHT_PIECE(at + 7u));
	} else if (WEIGHT_CODES == CODE_F16 || WEIGHT_CODES == CODE_BF16) {
		const uint at = row + 4u * b;
		lower.a = WEIGHT_PIECE(at);
		lower.b = WEIGHT_PIECE(at + 1u);
		upper.a = WEIGHT_PIECE(at + 2u);
		upper.b = WEIGHT_PIECE(at + 3u);
	} else if (WEIGHT_CODES == CODE_BYTE) {
		lower.a = WEIGHT_PIECE(row + 2u * b);
		upper.a = WEIGHT_PIECE(row + 2u * b + 1u);
	} else {
		const uvec4 codes = WEIGHT_PIECE(row + b);
		lower.a.xy = codes.xy;
		upper.a.xy = codes.zw;
		const uint high = row + weight_high_at(WEIGHT, cols);
		if (WEIGHT_HIGH == 4u) {
			lower.a.z = weight_component(WEIGHT_PIECE(high + (b >> 2)), b);
			upper.a.z = lower.a.z >> 4;
		}
		if (WEIGHT_HIGH == 8u) {
			const uvec4 two = WEIGHT_PIECE(high + (b >> 1));
			lower.a.z = (b & 1u) == 0u ? two.x : two.z;
			upper.a.z = (b & 1u) == 0u ? two.y : two.w;
		}
	}
}

struct WeightScales { uvec4 head, more; float factor; }; // of 8 blocks, 256 elements

WeightScales weight_scales(uint row, uint chunk, uint cols) {
	WeightScales s;
	const uint at = row + weight_scales_at(WEIGHT, cols);
	if (WEIGHT_SCALE == SCALE_HALF_MIN) {
		s.head = WEIGHT_PIECE(at + 2u * chunk);
		s.more = WEIGHT_PIECE(at + 2u * chunk + 1u);
	} else {
		s.head = WEIGHT_PIECE(at + chunk);
	}
	if (WEIGHT_SCALE == SCALE_BYTE) {
		const uvec4 eight = WEIGHT_PIECE(row + weight_factors_at(WEIGHT, cols) + (chunk >> 3));
		s.factor = weight_half(weight_component(eight, chunk >> 1), chunk);
	}
	return s;
}

// {scale, min} of the lower and the upper unit of block b of the chunk.
vec4 weight_block_scale(WeightScales s, uint b) {
	if (WEIGHT_SCALE == SCALE_K) return weight_k_pair(s.head, b).xyxy;
	if (WEIGHT_SCALE == SCALE_HALF_MIN)
		return weight_half_min_pair(b < 4u ? weight_component(s.head, b) : weight_component(s.more, b)).xyxy;
	const uint word = weight_component(s.head, b >> 1);
	if (WEIGHT_SCALE == SCALE_BYTE)
		return vec4(weight_byte_pair(s.factor, word, 2u * (b & 1u)), weight_byte_pair(s.factor, word, 2u * (b & 1u) + 1u));
	return weight_zero_pair(weight_half(word, b)).xyxy;
}
#endif
