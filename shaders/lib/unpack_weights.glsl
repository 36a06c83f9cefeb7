// Weight rows (shared/weight_row.h) to floats, in units of 16 consecutive elements: element = scale * code - min.
//
// The includer defines WTYPE (a constant; all branches on it fold) and those of these loads that suit its device:
//   WEIGHT_PIECE(i)  uvec4, 16-byte piece i of the bound array; always
//   WEIGHT_PAIR(i)   uvec2 i, WEIGHT_WORD(i) uint i; only for weight_unit() and weight_unit_scale()
// With GRID defined, for the types with grids and no others:
//   WEIGHT_GRID(i)   uint i of the table of grids
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

// Raw words: CODE_F32 a..d, F16 and BF16 a b, BYTE a, PAIR and BIT a.x, others a.xy; high bits a.z. Types with grids:
// a is the GridUnit.
struct WeightUnit { uvec4 a, b, c, d; };

const bool WEIGHT_PLAIN = WEIGHT_SCALE == SCALE_NONE;
// min is no multiple of scale
const bool WEIGHT_OWN_MIN = WEIGHT_SCALE == SCALE_HALF_MIN || WEIGHT_SCALE == SCALE_K || WEIGHT_SCALE == SCALE_NIBBLES;
const bool WEIGHT_MIN = WEIGHT_OWN_MIN || WEIGHT_ZERO > 0u; // codes count from below the smallest element
// The two units of a block have separate scales.
const bool WEIGHT_BY_HALVES =
	WEIGHT_SCALE == SCALE_BYTE || WEIGHT_SCALE == SCALE_NIBBLES || WEIGHT_SCALE == SCALE_ODD_HALVES ||
	WEIGHT_SCALE == SCALE_E4M3;
#ifdef GRID
const bool WEIGHT_SIGNED = true; // codes are signed bytes
#else
const bool WEIGHT_SIGNED = WEIGHT_CODES == CODE_BYTE || WEIGHT_CODES == CODE_BOOK || WEIGHT_CODES == CODE_FP4;
#endif
// log2 of the units for which a word has two f16 scales (SCALE_HALF)
const uint WEIGHT_HALVES = WEIGHT_SCALE_BYTES == 4u ? 4u : WEIGHT_SCALE_BYTES == 8u ? 3u : 2u;
const bool WEIGHT_HAS_FACTOR = WEIGHT_FACTOR_BYTES == 2u; // a factor for 256 elements

vec4 weight_bytes(uint w) { return vec4(w & 255u, (w >> 8) & 255u, (w >> 16) & 255u, w >> 24); }
vec4 weight_signed_bytes(uint w) {
	const int s = int(w);
	return vec4(bitfieldExtract(s, 0, 8), bitfieldExtract(s, 8, 8), bitfieldExtract(s, 16, 8), s >> 24);
}
vec4 weight_bf16(uvec2 w) { return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u)); }

// Codes of elements 4i .. 4i + 3 of a unit of quantised weights, as bytes.
uint weight_code_bytes(WeightUnit r, uint i) {
#ifdef GRID
	const GridUnit g = GridUnit(r.a.x, r.a.y, r.a.z, r.a.w);
	return grid_codes(WEIGHT_CODES, g, i, WEIGHT_GRID(grid_word(WEIGHT_CODES, g, i)));
#else
	if (WEIGHT_CODES == CODE_BYTE) return r.a[i];
	if (WEIGHT_CODES == CODE_PAIR) {
		const uint pair = weight_high_bits(r.a.x, i, 0u);
		return WEIGHT_HIGH == 4u ? pair | weight_high_bit(r.a.z, i, 2u) : pair;
	}
	if (WEIGHT_CODES == CODE_BIT) return weight_high_bit(r.a.x, i, 1u);
	uint code = weight_nibbles(r.a.x, r.a.y, i);
	if (WEIGHT_CODES == CODE_BOOK) return weight_book(BOOK_IQ4, code);
	if (WEIGHT_CODES == CODE_FP4) return weight_book(BOOK_FP4, code);
	if (WEIGHT_HIGH == 4u) code |= weight_high_bit(r.a.z, i, 4u);
	if (WEIGHT_HIGH == 8u) code |= weight_high_bits(r.a.z, i, 4u);
	return code;
#endif
}
// The same elements as floats, for any type.
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
// {scale, min} of a unit from its scale alone.
vec2 weight_zero_pair(float s) { return vec2(s, WEIGHT_ZERO > 0u ? float(WEIGHT_ZERO) * s : 0.0); }
// The same from factor d and signed byte `byte` of `word`.
vec2 weight_byte_pair(float d, uint word, uint byte) {
	return weight_zero_pair(d * float(bitfieldExtract(int(word), int(8u * byte), 8)));
}
// The same from {d, dmin} and a byte of two nibbles.
vec2 weight_nibbles_pair(vec2 d, uint word, uint byte) {
	return d * vec2((word >> (8u * byte)) & 15u, (word >> (8u * byte + 4u)) & 15u);
}
vec2 weight_e8m0_pair(uint word, uint byte) {
	return vec2(uintBitsToFloat(weight_e8m0((word >> (8u * byte)) & 255u)), 0.0);
}
// The same from the row's factor and a byte of four.
vec2 weight_e4m3_pair(float d, uint word, uint byte) { return vec2(d * weight_e4m3(word >> (8u * byte)), 0.0); }
vec2 weight_half_min_pair(uint word) { return unpackHalf2x16(word) * vec2(1.0, -1.0); }
float weight_half(uint word, uint which) { return unpackHalf2x16(word >> (16u * (which & 1u))).x; }

uint weight_component(uvec4 v, uint i) {
	return (i & 2u) == 0u ? ((i & 1u) == 0u ? v.x : v.y) : ((i & 1u) == 0u ? v.z : v.w);
}

#ifdef GRID
WeightUnit weight_grid_unit(uint x, uint y, uint high, uint scale, uint h) {
	const GridUnit g = grid_unit(WEIGHT_CODES, x, y, high, scale, h);
	WeightUnit r;
	r.a = uvec4(g.entries, g.more, g.signs, g.scale);
	return r;
}
vec2 weight_grid_scale(WeightUnit r, float d) {
	return vec2(d * grid_scale(WEIGHT_CODES, GridUnit(r.a.x, r.a.y, r.a.z, r.a.w)), 0.0);
}
// Two blocks of 32 share a word of `high`: the bits for unit h (0 or 1) of block b.
uint weight_grid_high(uint word, uint b, uint h) {
	const uint own = word >> (16u * (b & 1u));
	return WEIGHT_CODES == CODE_IQ1_S ? own & 0xffffu : (own >> (8u * h)) & 255u;
}
#endif

#ifdef WEIGHT_WORD
// Unit u of the row that starts at piece `row`.
WeightUnit weight_unit(uint row, uint u, uint cols) {
	WeightUnit r;
#ifdef GRID
	const uint h = u & 1u, b = u >> 1, high_at = 4u * (row + weight_high_at(WEIGHT, cols)),
	           scales_at = 4u * (row + weight_scales_at(WEIGHT, cols));
	uint x, y = 0u, high = 0u, scale = 0u;
	if (WEIGHT_CODES == CODE_IQ2_XXS) {
		const uvec2 xy = WEIGHT_PAIR(2u * row + b);
		x = xy.x, y = xy.y;
	} else if (WEIGHT_CODE_BYTES == 4u) {
		x = WEIGHT_WORD(4u * row + u);
	} else {
		x = WEIGHT_WORD(4u * row + b) >> (16u * h);
	}
	if (WEIGHT_HIGH == 4u) high = WEIGHT_WORD(high_at + b);
	if (WEIGHT_CODES == CODE_IQ3_S) high = (high >> (16u * h)) & 0xffffu;
	if (WEIGHT_HIGH == 2u) high = weight_grid_high(WEIGHT_WORD(high_at + (b >> 1)), b, h);
	if (WEIGHT_SCALE_BYTES == 8u) scale = WEIGHT_WORD(scales_at + (u >> 3)) >> (4u * (u & 7u));
	if (WEIGHT_SCALE_BYTES == 16u) scale = WEIGHT_WORD(scales_at + (u >> 2)) >> (8u * (u & 3u));
	return weight_grid_unit(x, y, high, scale, h);
#endif
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
		if (WEIGHT_CODES == CODE_PAIR) r.a.x = WEIGHT_WORD(4u * row + u);
		else if (WEIGHT_CODES == CODE_BIT) r.a.x = WEIGHT_WORD(4u * row + (u >> 1)) >> (4u * (u & 1u));
		else r.a.xy = WEIGHT_PAIR(2u * row + u);
		if (WEIGHT_HIGH == 4u)
			r.a.z = WEIGHT_WORD(4u * (row + weight_high_at(WEIGHT, cols)) + (u >> 1)) >> (4u * (u & 1u));
		if (WEIGHT_HIGH == 8u) r.a.z = WEIGHT_WORD(4u * (row + weight_high_at(WEIGHT, cols)) + u);
	}
	return r;
}

// {scale, min} of the same unit.
vec2 weight_unit_scale(uint row, uint u, uint cols) {
	if (WEIGHT_PLAIN) return vec2(1.0, 0.0);
#ifdef GRID
	const uint word = WEIGHT_WORD(4u * (row + weight_factors_at(WEIGHT, cols)) + (u >> 5));
	return weight_grid_scale(weight_unit(row, u, cols), weight_half(word, u >> 4));
#endif
	const uint at = row + weight_scales_at(WEIGHT, cols);
	if (WEIGHT_SCALE == SCALE_K) return weight_k_pair(WEIGHT_PIECE(at + (u >> 4)), (u >> 1) & 7u);
	if (WEIGHT_SCALE == SCALE_HALF_MIN) return weight_half_min_pair(WEIGHT_WORD(4u * at + (u >> 1)));
	if (WEIGHT_SCALE == SCALE_NIBBLES) {
		const uint factors = WEIGHT_WORD(4u * (row + weight_factors_at(WEIGHT, cols)) + (u >> 4));
		return weight_nibbles_pair(unpackHalf2x16(factors), WEIGHT_WORD(4u * at + (u >> 2)), u & 3u);
	}
	if (WEIGHT_SCALE == SCALE_E8M0) return weight_e8m0_pair(WEIGHT_WORD(4u * at + (u >> 3)), (u >> 1) & 3u);
	if (WEIGHT_SCALE == SCALE_E4M3) {
		const float d = uintBitsToFloat(WEIGHT_WORD(4u * (row + weight_factors_at(WEIGHT, cols))));
		return weight_e4m3_pair(d, WEIGHT_WORD(4u * at + (u >> 2)), u & 3u);
	}
	if (WEIGHT_HAS_FACTOR) {
		const float d = weight_half(WEIGHT_WORD(4u * (row + weight_factors_at(WEIGHT, cols)) + (u >> 5)), u >> 4);
		if (WEIGHT_SCALE == SCALE_FACTOR) return weight_zero_pair(d);
		if (WEIGHT_SCALE == SCALE_BLOCK_BYTE)
			return weight_byte_pair(d, WEIGHT_WORD(4u * at + (u >> 3)), (u >> 1) & 3u);
		return weight_byte_pair(d, WEIGHT_WORD(4u * at + (u >> 2)), u & 3u);
	}
	return weight_zero_pair(weight_half(WEIGHT_WORD(4u * at + (u >> WEIGHT_HALVES)), u >> (WEIGHT_HALVES - 1u)));
}
#endif

#ifdef WEIGHT_BLOCKS
// Block b (units 2b and 2b + 1) of the row that starts at piece `row`, by piece loads only.
void weight_block(uint row, uint b, uint cols, out WeightUnit lower, out WeightUnit upper) {
#ifdef GRID
	const uint high_at = row + weight_high_at(WEIGHT, cols), scales_at = row + weight_scales_at(WEIGHT, cols);
	uvec2 x, high = uvec2(0u), scale = uvec2(0u);
	if (WEIGHT_CODE_BYTES == 4u) {
		const uvec4 two = WEIGHT_PIECE(row + (b >> 1));
		x = (b & 1u) == 0u ? two.xy : two.zw;
	} else {
		const uint word = weight_component(WEIGHT_PIECE(row + (b >> 2)), b);
		x = uvec2(word, word >> 16);
	}
	const uint y = x.y;
	if (WEIGHT_CODES == CODE_IQ2_XXS) x.y = x.x;
	if (WEIGHT_HIGH == 4u) high = uvec2(weight_component(WEIGHT_PIECE(high_at + (b >> 2)), b));
	if (WEIGHT_CODES == CODE_IQ3_S) high = uvec2(high.x & 0xffffu, high.x >> 16);
	if (WEIGHT_HIGH == 2u) {
		const uint word = weight_component(WEIGHT_PIECE(high_at + (b >> 3)), b >> 1);
		high = uvec2(weight_grid_high(word, b, 0u), weight_grid_high(word, b, 1u));
	}
	if (WEIGHT_SCALE_BYTES == 8u) {
		const uint byte = weight_component(WEIGHT_PIECE(scales_at + (b >> 4)), b >> 2) >> (8u * (b & 3u));
		scale = uvec2(byte, byte >> 4);
	}
	if (WEIGHT_SCALE_BYTES == 16u) {
		const uint bytes = weight_component(WEIGHT_PIECE(scales_at + (b >> 3)), b >> 1) >> (16u * (b & 1u));
		scale = uvec2(bytes, bytes >> 8);
	}
	lower = weight_grid_unit(x.x, y, high.x, scale.x, 0u);
	upper = weight_grid_unit(x.y, y, high.y, scale.y, 1u);
	return;
#endif
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
		if (WEIGHT_CODES == CODE_PAIR) {
			const uvec4 two = WEIGHT_PIECE(row + (b >> 1));
			lower.a.x = (b & 1u) == 0u ? two.x : two.z;
			upper.a.x = (b & 1u) == 0u ? two.y : two.w;
		} else if (WEIGHT_CODES == CODE_BIT) {
			lower.a.x = weight_component(WEIGHT_PIECE(row + (b >> 2)), b);
			upper.a.x = lower.a.x >> 4;
		} else {
			const uvec4 codes = WEIGHT_PIECE(row + b);
			lower.a.xy = codes.xy;
			upper.a.xy = codes.zw;
		}
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

struct WeightScales { uvec4 head, more; vec2 factor; }; // of 8 blocks, 256 elements

WeightScales weight_scales(uint row, uint chunk, uint cols) {
	WeightScales s;
	const uint at = row + weight_scales_at(WEIGHT, cols);
	if (WEIGHT_SCALE == SCALE_HALF_MIN) {
		s.head = WEIGHT_PIECE(at + 2u * chunk);
		s.more = WEIGHT_PIECE(at + 2u * chunk + 1u);
	} else if (WEIGHT_SCALE == SCALE_HALF && WEIGHT_SCALE_BYTES == 4u) {
		s.head.x = weight_component(WEIGHT_PIECE(at + (chunk >> 2)), chunk);
	} else if (WEIGHT_SCALE_BYTES == 8u && WEIGHT_SCALE != SCALE_ODD && WEIGHT_SCALE != SCALE_ODD_HALVES) {
		const uvec4 two = WEIGHT_PIECE(at + (chunk >> 1));
		s.head.xy = (chunk & 1u) == 0u ? two.xy : two.zw;
	} else if (WEIGHT_SCALE_BYTES == 16u && WEIGHT_SCALE != SCALE_ODD) {
		s.head = WEIGHT_PIECE(at + chunk);
	}
	const uint factors = row + weight_factors_at(WEIGHT, cols);
	if (WEIGHT_HAS_FACTOR) {
		const uvec4 eight = WEIGHT_PIECE(factors + (chunk >> 3));
		s.factor.x = weight_half(weight_component(eight, chunk >> 1), chunk);
	}
	if (WEIGHT_SCALE == SCALE_E4M3) s.factor.x = uintBitsToFloat(WEIGHT_PIECE(factors).x);
	if (WEIGHT_SCALE == SCALE_NIBBLES)
		s.factor = unpackHalf2x16(weight_component(WEIGHT_PIECE(factors + (chunk >> 2)), chunk));
	return s;
}

// {scale, min} of the lower and the upper unit of block b of the chunk.
vec4 weight_block_scale(WeightScales s, uint b, WeightUnit lower, WeightUnit upper) {
#ifdef GRID
	return vec4(weight_grid_scale(lower, s.factor.x), weight_grid_scale(upper, s.factor.x));
#endif
	if (WEIGHT_SCALE == SCALE_K) return weight_k_pair(s.head, b).xyxy;
	if (WEIGHT_SCALE == SCALE_HALF_MIN)
		return weight_half_min_pair(b < 4u ? weight_component(s.head, b) : weight_component(s.more, b)).xyxy;
	if (WEIGHT_SCALE == SCALE_FACTOR) return weight_zero_pair(s.factor.x).xyxy;
	if (WEIGHT_SCALE == SCALE_HALF && WEIGHT_SCALE_BYTES < 16u) {
		const uint i = b >> (WEIGHT_HALVES - 2u);
		return weight_zero_pair(weight_half(weight_component(s.head, i >> 1), i)).xyxy;
	}
	if (WEIGHT_SCALE_BYTES == 8u) {
		const uint four = b < 4u ? s.head.x : s.head.y;
		if (WEIGHT_SCALE == SCALE_E8M0) return weight_e8m0_pair(four, b & 3u).xyxy;
		return weight_byte_pair(s.factor.x, four, b & 3u).xyxy;
	}
	const uint word = weight_component(s.head, b >> 1), byte = 2u * (b & 1u);
	if (WEIGHT_SCALE == SCALE_BYTE)
		return vec4(weight_byte_pair(s.factor.x, word, byte), weight_byte_pair(s.factor.x, word, byte + 1u));
	if (WEIGHT_SCALE == SCALE_E4M3)
		return vec4(weight_e4m3_pair(s.factor.x, word, byte), weight_e4m3_pair(s.factor.x, word, byte + 1u));
	if (WEIGHT_SCALE == SCALE_NIBBLES)
		return vec4(weight_nibbles_pair(s.factor, word, byte), weight_nibbles_pair(s.factor, word, byte + 1u));
	return weight_zero_pair(weight_half(word, b)).xyxy;
}
#endif
