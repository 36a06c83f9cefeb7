// Weight rows -> floats, 16 elements at a time: shaders/shared/weight_row.h read by one thread. Where the type is known
// at compile time (known_type()), branches on it vanish.
#pragma once
#include "backends/cuda/device.cuh"
#include "shared/weight_codes.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

constexpr uint32_t kUnit = 16; // elements

struct WeightRow { // the parts of one row
	WeightTraits traits;
	const uint4 *codes, *high, *scales, *factors; // pieces of 16 bytes
	const uint32_t* grids;
};

__device__ inline WeightRow weight_row(const Weight& w, uint32_t row) {
	const WeightTraits& t = w.traits;
	const uint4* at = static_cast<const uint4*>(w.rows) + uint64_t(row) * weight_row_pieces(t, w.cols);
	return {
	    t,      at, at + weight_high_at(t, w.cols), at + weight_scales_at(t, w.cols), at + weight_factors_at(t, w.cols),
	    w.grids};
}

__device__ inline uint32_t word_of(const uint4* pieces, uint32_t i) {
	return reinterpret_cast<const uint32_t*>(pieces)[i];
}
__device__ inline float half_of(const uint4* pieces, uint32_t i) {
	return half_at(reinterpret_cast<const uint32_t*>(pieces), i);
}
__device__ inline int signed_byte(const uint4* pieces, uint32_t i) {
	return int(word_of(pieces, i / 4) << (24 - i % 4 * 8)) >> 24;
}

// Calls f(weight) with a weight of the same type whose traits are constants; only for types of is_known_type().
template <class F> __device__ inline void known_type(const Weight& w, F f) {
	switch (w.type) {
#define KV_KNOWN(id)                                                                                                   \
	case id: {                                                                                                         \
		constexpr WeightTraits traits = weight_traits(id);                                                             \
		f(Weight{w.rows, w.cols, id, traits, w.grids});                                                                \
		break;                                                                                                         \
	}
		KV_KNOWN_TYPES(KV_KNOWN)
#undef KV_KNOWN
	}
}

// A unit's codes, by one load as wide as they are; types with grids read theirs by unit_of_grid().
__device__ inline uint4 unit_codes(const WeightRow& w, uint32_t unit) {
	switch (w.traits.codes) {
	case CODE_BYTE: return w.codes[unit];
	case CODE_NIBBLE:
	case CODE_BOOK:
	case CODE_FP4: {
		const uint2 pair = reinterpret_cast<const uint2*>(w.codes)[unit];
		return {pair.x, pair.y, 0, 0};
	}
	case CODE_PAIR: return {word_of(w.codes, unit), 0, 0, 0};
	case CODE_BIT: return {word_of(w.codes, unit / 2) >> unit % 2 * 4, 0, 0, 0};
	}
	return {};
}
__device__ inline uint32_t word_of(const uint4& words, uint32_t i) {
	return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Unit of a type with grids; shared/weight_codes.h explains its parts.
__device__ inline GridUnit unit_of_grid(const WeightRow& w, uint32_t unit) {
	const WeightTraits& t = w.traits;
	const uint32_t h = unit % 2, block = unit / 2;
	uint32_t x, y = 0, high = 0, scale = 0;
	if (t.codes == CODE_IQ2_XXS)
		x = word_of(w.codes, block * 2), y = word_of(w.codes, block * 2 + 1);
	else
		x = t.code_bytes == 4 ? word_of(w.codes, unit) : word_of(w.codes, block) >> 16 * h;
	if (t.high == 4) high = word_of(w.high, block);
	if (t.codes == CODE_IQ3_S) high = high >> 16 * h & 0xffffu;
	if (t.high == 2) {
		high = word_of(w.high, block / 2) >> 16 * (block % 2) & 0xffffu;
		if (t.codes != CODE_IQ1_S) high = high >> 8 * h & 255u;
	}
	if (t.scale_bytes == 8) scale = word_of(w.scales, unit / 8) >> 4 * (unit % 8);
	if (t.scale_bytes == 16) scale = word_of(w.scales, unit / 4) >> 8 * (unit % 4);
	return grid_unit(t.codes, x, y, high, scale, h);
}

struct UnitScale { // element = scale * code - min, one rounding: products that give `min` must not become part of it
	float scale, min;
};
__device__ inline UnitScale unit_scale(const WeightRow& w, uint32_t unit) {
	switch (w.traits.scale) {
	case SCALE_HALF_MIN: {
		const uint32_t word = word_of(w.scales, unit / 2);
		return {low_half(word), -high_half(word)};
	}
	case SCALE_K: {
		const uint4 head = w.scales[unit / 16];
		const uint32_t run = unit / 2 % 8;
		return {low_half(head.x) * float(weight_k_scale(head.y, head.w, run)),
		        __fmul_rn(high_half(head.x), float(weight_k_min(head.z, head.w, run)))};
	}
	case SCALE_BYTE: return {half_of(w.factors, unit / 16) * float(signed_byte(w.scales, unit)), 0};
	case SCALE_BLOCK_BYTE: return {half_of(w.factors, unit / 16) * float(signed_byte(w.scales, unit / 2)), 0};
	case SCALE_NIBBLES: {
		const uint32_t factors = word_of(w.factors, unit / 16), byte = uint32_t(signed_byte(w.scales, unit));
		return {low_half(factors) * float(byte & 15u), __fmul_rn(high_half(factors), float(byte >> 4 & 15u))};
	}
	case SCALE_E8M0: return {__int_as_float(int(weight_e8m0(uint32_t(signed_byte(w.scales, unit / 2)) & 255u))), 0};
	case SCALE_E4M3:
		return {__int_as_float(int(word_of(w.factors, 0))) * weight_e4m3(uint32_t(signed_byte(w.scales, unit))), 0};
	case SCALE_ODD:
	case SCALE_ODD_HALVES:
		return {half_of(w.factors, unit / 16) * grid_scale(w.traits.codes, unit_of_grid(w, unit)), 0};
	case SCALE_FACTOR: return {half_of(w.factors, unit / 16), 0};
	default: return {half_of(w.scales, unit * w.traits.scale_bytes / 32), 0}; // SCALE_HALF
	}
}

// Codes of elements 4i .. 4i + 3 of a unit of quantised weights, minus zero, as signed bytes; `codes`: unit_codes().
__device__ inline uint32_t code_bytes(const WeightRow& w, const uint4& codes, uint32_t unit, uint32_t i) {
	if (w.traits.codes == CODE_BYTE) return word_of(codes, i);
	if (w.traits.scale == SCALE_ODD || w.traits.scale == SCALE_ODD_HALVES) {
		const GridUnit g = unit_of_grid(w, unit);
		return grid_codes(w.traits.codes, g, i, w.grids[grid_word(w.traits.codes, g, i)]);
	}
	const bool pair = w.traits.codes == CODE_PAIR;
	if (w.traits.codes == CODE_BIT) return weight_centred(weight_high_bit(codes.x, i, 1), w.traits.zero);
	uint32_t code = pair ? weight_high_bits(codes.x, i, 0) : weight_nibbles(codes.x, codes.y, i);
	if (w.traits.codes == CODE_BOOK) return weight_book(BOOK_IQ4, code);
	if (w.traits.codes == CODE_FP4) return weight_book(BOOK_FP4, code);
	if (w.traits.high == 4) code |= weight_high_bit(word_of(w.high, unit / 2) >> unit % 2 * 4, i, pair ? 2 : 4);
	if (w.traits.high == 8) code |= weight_high_bits(word_of(w.high, unit), i, 4);
	return w.traits.zero ? weight_centred(code, w.traits.zero) : code;
}

// Whether two units that begin at a multiple of 32 elements have different scales.
constexpr bool scales_units(const WeightTraits& t) {
	return t.scale == SCALE_BYTE || t.scale == SCALE_NIBBLES || t.scale == SCALE_E4M3 || t.scale == SCALE_ODD ||
	       t.scale == SCALE_ODD_HALVES;
}

// Elements [16 * unit, 16 * unit + 16) of a row; past the end of a row of plain floats, zeros. scale(): unit_scale().
template <class Scale> __device__ inline void weight_unit(const WeightRow& w, uint32_t unit, float* e, Scale scale) {
	switch (w.traits.codes) {
	case CODE_F32:
#pragma unroll
		for (uint32_t i = 0; i < kUnit; i += 4) {
			const uint4 piece = w.codes[unit * (kUnit / 4) + i / 4];
			e[i] = __int_as_float(int(piece.x)), e[i + 1] = __int_as_float(int(piece.y));
			e[i + 2] = __int_as_float(int(piece.z)), e[i + 3] = __int_as_float(int(piece.w));
		}
		return;
	case CODE_F16:
	case CODE_BF16: {
		const uint4 first = w.codes[unit * (kUnit / 8)], second = w.codes[unit * (kUnit / 8) + 1];
#pragma unroll
		for (uint32_t i = 0; i < kUnit; ++i) {
			const uint32_t word = word_of(i < kUnit / 2 ? first : second, i / 2 % 4);
			e[i] = w.traits.codes == CODE_BF16 ? __int_as_float(int(i % 2 ? word & 0xffff0000u : word << 16))
			       : i % 2                     ? high_half(word)
			                                   : low_half(word);
		}
		return;
	}
	}
	const UnitScale s = scale();
	const uint4 codes = unit_codes(w, unit);
#pragma unroll
	for (uint32_t i = 0; i < kUnit; i += 4) {
		const uint32_t code = code_bytes(w, codes, unit, i / 4);
#pragma unroll
		for (uint32_t c = 0; c < 4; ++c) { e[i + c] = s.scale * signed_float(code, c) - s.min; }
	}
}
__device__ inline void weight_unit(const WeightRow& w, uint32_t unit, float* e) {
	weight_unit(w, unit, e, [&] { return unit_scale(w, unit); });
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
