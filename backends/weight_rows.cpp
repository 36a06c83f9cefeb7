// Converts GGUF rows to the rows of shaders/shared/weight_row.h.
#include "backends/weight_rows.h"
#include "engine/core/error.h"
#include "shaders/shared/weight_row.h"
#include <bit>
#include <cstring>
#include <initializer_list>

namespace kvrun {
namespace {

static_assert(std::endian::native == std::endian::little);

template <class T> T load(const std::byte* p) {
	T v;
	std::memcpy(&v, p, sizeof v);
	return v;
}
template <class T> void store(std::byte* p, T v) { std::memcpy(p, &v, sizeof v); }

// A unit of 16 codes: the nibbles at `shift` (0 or 4) of 16 bytes, two halves of 8 side by side.
uint64_t nibble_unit(const std::byte* src, int shift) {
	constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0full;
	return ((load<uint64_t>(src) >> shift) & kLow) | ((load<uint64_t>(src + 8) >> shift) & kLow) << 4;
}

struct Row { // positions of the parts of one device row
	std::byte *codes, *high, *scales, *factors;
};

struct Part { // a part of a block, copied unchanged next to those of other blocks
	std::byte* to;
	size_t at, bytes;
};
void copy_parts(const std::byte* src, size_t blocks, size_t block_bytes, std::initializer_list<Part> parts) {
	for (size_t b = 0; b < blocks; ++b, src += block_bytes)
		for (const Part& p : parts) std::memcpy(p.to + p.bytes * b, src + p.at, p.bytes);
}

void row_q8_0(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 34) {
		std::memcpy(r.scales + 2 * b, src, 2);
		std::memcpy(r.codes + 32 * b, src + 2, 32);
	}
}

void row_q4_0(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 18) {
		std::memcpy(r.scales + 2 * b, src, 2);
		store(r.codes + 16 * b, nibble_unit(src + 2, 0));
		store(r.codes + 16 * b + 8, nibble_unit(src + 2, 4));
	}
}

void row_q4_1(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 20) {
		std::memcpy(r.scales + 4 * b, src, 4);
		store(r.codes + 16 * b, nibble_unit(src + 4, 0));
		store(r.codes + 16 * b + 8, nibble_unit(src + 4, 4));
	}
}

// Bits of 32 consecutive elements, element i at bit i, as a word of high bits: element 16h + 4s + c at bit 8c + 4h + s.
uint32_t high_word(uint32_t bits) {
	uint32_t word = 0;
	for (uint i = 0; i < 32; ++i) word |= (bits >> i & 1u) << (8 * (i % 4) + i / 4);
	return word;
}

void row_q5_0(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 22) {
		std::memcpy(r.scales + 2 * b, src, 2);
		store(r.high + 4 * b, high_word(load<uint32_t>(src + 2)));
		store(r.codes + 16 * b, nibble_unit(src + 6, 0));
		store(r.codes + 16 * b + 8, nibble_unit(src + 6, 4));
	}
}

void row_q5_1(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 24) {
		std::memcpy(r.scales + 4 * b, src, 4);
		store(r.high + 4 * b, high_word(load<uint32_t>(src + 4)));
		store(r.codes + 16 * b, nibble_unit(src + 8, 0));
		store(r.codes + 16 * b + 8, nibble_unit(src + 8, 4));
	}
}

// 64 bytes of bit pairs; element 32 * run + i of 256 is pair run % 4 of byte i of its half.
void pair_codes(const std::byte* src, std::byte* dst) {
	for (int unit = 0; unit < 16; ++unit) {
		const std::byte* q = src + unit / 8 * 32 + unit % 2 * 16;
		uint32_t word = 0;
		for (int s = 0; s < 4; ++s)
			word |= ((load<uint32_t>(q + 4 * s) >> (unit / 2 % 4 * 2)) & 0x03030303u) << (2 * s);
		store(dst + 4 * unit, word);
	}
}

void row_q2_k(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 84) {
		std::memcpy(r.scales + 16 * b, src, 16);
		pair_codes(src + 16, r.codes + 64 * b);
		std::memcpy(r.factors + 4 * b, src + 80, 4);
	}
}

// 32 bytes; bit `run` of byte i belongs to element 32 * run + i.
void run_bits(const std::byte* src, std::byte* dst) {
	for (int run = 0; run < 8; ++run) {
		uint32_t word = 0;
		for (int s = 0; s < 8; ++s) word |= ((load<uint32_t>(src + 4 * s) >> run) & 0x01010101u) << s;
		store(dst + 4 * run, word);
	}
}

void row_q3_k(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 110) {
		run_bits(src, r.high + 32 * b);
		pair_codes(src + 32, r.codes + 64 * b);
		const auto s = [&](int i) { return std::to_integer<int>(src[96 + i]); };
		for (int j = 0; j < 16; ++j) // six bits minus 32
			r.scales[16 * b + size_t(j)] =
			    std::byte(((s(j % 8) >> j / 8 * 4 & 15) | (s(8 + j % 4) >> j / 4 * 2 & 3) << 4) - 32);
		std::memcpy(r.factors + 2 * b, src + 108, 2);
	}
}

void row_iq4_xs(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 136) {
		const uint32_t upper = load<uint16_t>(src + 2);
		for (uint run = 0; run < 8; ++run) {
			const uint32_t lower = std::to_integer<uint32_t>(src[4 + run / 2]) >> run % 2 * 4 & 15;
			r.scales[8 * b + run] = std::byte((lower | (upper >> 2 * run & 3) << 4) - 32u);
			store(r.codes + 128 * b + 16 * run, nibble_unit(src + 8 + 16 * run, 0));
			store(r.codes + 128 * b + 16 * run + 8, nibble_unit(src + 8 + 16 * run, 4));
		}
		std::memcpy(r.factors + 2 * b, src, 2);
	}
}

void row_mxfp4(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 17) {
		r.scales[b] = src[0];
		store(r.codes + 16 * b, nibble_unit(src + 1, 0));
		store(r.codes + 16 * b + 8, nibble_unit(src + 1, 4));
	}
}

// A sub-block of 16 elements lies as a unit does.
void row_nvfp4(const std::byte* src, size_t blocks, const Row& r) {
	copy_parts(src, blocks, 36, {{r.scales, 0, 4}, {r.codes, 4, 32}});
	for (size_t i = 0; i < 4 * blocks; ++i)
		if (r.scales[i] == std::byte(0x7f)) r.scales[i] = {}; // as dequantise_row() reads it
}

// Digits of base three become bit pairs.
void row_tq1_0(const std::byte* src, size_t blocks, const Row& r) {
	constexpr uint32_t kPower[] = {1, 3, 9, 27, 81};
	for (size_t b = 0; b < blocks; ++b, src += 54) {
		for (uint i = 0; i < 256; ++i) {
			const uint at = i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4;
			const uint digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
			const uint32_t code = (std::to_integer<uint32_t>(src[at]) * kPower[digit] & 255) * 3 >> 8;
			std::byte& to = r.codes[64 * b + i / 16 * 4 + i % 4]; // element 4s + c of a unit at bits 8c + 2s
			to |= std::byte(code << i % 16 / 4 * 2);
		}
		std::memcpy(r.factors + 2 * b, src + 52, 2);
	}
}

void row_tq2_0(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 66) {
		pair_codes(src, r.codes + 64 * b);
		std::memcpy(r.factors + 2 * b, src + 64, 2);
	}
}

// 16 bytes of bits; element i is bit i.
void row_q1_0(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 18) {
		std::memcpy(r.scales + 2 * b, src, 2);
		for (size_t i = 0; i < 16; i += 4) store(r.codes + 16 * b + i, high_word(load<uint32_t>(src + 2 + i)));
	}
}

// Blocks of n elements, 4 to a byte, in order.
void row_q2_0(const std::byte* src, size_t blocks, size_t n, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 2 + n / 4) {
		std::memcpy(r.scales + 2 * b, src, 2);
		for (size_t unit = 0; unit < n / 16; ++unit) {
			const uint32_t in_order = load<uint32_t>(src + 2 + 4 * unit); // element i at bits 2i
			uint32_t word = 0;
			for (uint i = 0; i < 16; ++i) word |= (in_order >> 2 * i & 3u) << (8 * (i % 4) + 2 * (i / 4));
			store(r.codes + b * n / 4 + 4 * unit, word);
		}
	}
}

void row_iq2_xxs(const std::byte* src, size_t blocks, const Row& r) {
	copy_parts(src, blocks, 66, {{r.factors, 0, 2}, {r.codes, 2, 64}});
}

void row_iq2_xs(const std::byte* src, size_t blocks, const Row& r) {
	copy_parts(src, blocks, 74, {{r.factors, 0, 2}, {r.codes, 2, 64}, {r.scales, 66, 8}});
}

void row_iq2_s(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 82) {
		std::memcpy(r.factors + 2 * b, src, 2);
		for (uint unit = 0; unit < 16; ++unit) {
			std::memcpy(r.codes + 64 * b + 4 * unit, src + 2 + 2 * unit, 2);
			std::memcpy(r.codes + 64 * b + 4 * unit + 2, src + 34 + 2 * unit, 2);
			const std::byte upper = src[66 + unit / 2] >> unit % 2 * 4, scale = src[74 + unit / 2] >> unit % 2 * 4;
			r.high[16 * b + unit] = (upper & std::byte(15)) | scale << 4;
		}
	}
}

void row_iq3_xxs(const std::byte* src, size_t blocks, const Row& r) {
	copy_parts(src, blocks, 98, {{r.factors, 0, 2}, {r.codes, 2, 64}, {r.high, 66, 32}});
}

void row_iq3_s(const std::byte* src, size_t blocks, const Row& r) {
	copy_parts(src, blocks, 110, {{r.factors, 0, 2}, {r.codes, 2, 64}, {r.high, 74, 32}});
	for (size_t b = 0; b < blocks; ++b, src += 110)
		for (uint unit = 0; unit < 16; ++unit) {
			const std::byte upper = src[66 + unit / 2] >> unit % 2 * 4, scale = src[106 + unit / 4] >> unit / 2 % 2 * 4;
			r.scales[16 * b + unit] = (upper & std::byte(15)) | scale << 4;
		}
}

void row_iq1_s(const std::byte* src, size_t blocks, const Row& r) {
	copy_parts(src, blocks, 50, {{r.factors, 0, 2}, {r.codes, 2, 32}, {r.high, 34, 16}});
}

void row_iq1_m(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 56) {
		std::memcpy(r.codes + 32 * b, src, 32);
		std::memcpy(r.high + 16 * b, src + 32, 16);
		uint32_t d = 0;
		for (uint i = 0; i < 4; ++i) { // 4 x 3 bits of scale and a nibble of d
			const uint32_t s = load<uint16_t>(src + 48 + 2 * i);
			const uint32_t scales = (s & 7) | (s >> 3 & 7) << 4 | (s >> 6 & 7) << 8 | (s >> 9 & 7) << 12;
			store(r.scales + 8 * b + 2 * i, uint16_t(scales));
			d |= s >> 12 << 4 * i;
		}
		store(r.factors + 2 * b, uint16_t(d));
	}
}

// d, dmin and the 12 bytes of six-bit scales and mins of a Q4_K or Q5_K block, as one piece.
void k_header(const std::byte* src, std::byte* dst) {
	uint32_t scale_low = 0, min_low = 0, upper = 0;
	const auto s = [&](int i) { return std::to_integer<uint32_t>(src[4 + i]); };
	for (int r = 0; r < 8; ++r) {
		const uint32_t scale = r < 4 ? s(r) & 63 : (s(4 + r) & 15) | (s(r - 4) >> 6) << 4;
		const uint32_t min = r < 4 ? s(4 + r) & 63 : s(4 + r) >> 4 | (s(r) >> 6) << 4;
		scale_low |= (scale & 15) << (4 * r);
		min_low |= (min & 15) << (4 * r);
		upper |= scale >> 4 << (2 * r) | min >> 4 << (16 + 2 * r);
	}
	std::memcpy(dst, src, 4);
	store(dst + 4, scale_low);
	store(dst + 8, min_low);
	store(dst + 12, upper);
}

// 128 bytes whose low and high nibbles are runs 2r and 2r + 1 of 32 elements.
void k_codes(const std::byte* src, std::byte* dst) {
	for (int r = 0; r < 8; ++r)
		for (int u = 0; u < 2; ++u) store(dst + 16 * r + 8 * u, nibble_unit(src + r / 2 * 32 + 16 * u, r % 2 * 4));
}

void row_q4_k(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 144) {
		k_header(src, r.scales + 16 * b);
		k_codes(src + 16, r.codes + 128 * b);
	}
}

void row_q5_k(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 176) {
		k_header(src, r.scales + 16 * b);
		k_codes(src + 48, r.codes + 128 * b);
		run_bits(src + 16, r.high + 32 * b);
	}
}

void row_q6_k(const std::byte* src, size_t blocks, const Row& r) {
	for (size_t b = 0; b < blocks; ++b, src += 210) {
		for (int unit = 0; unit < 16; ++unit) { // elements 16 * unit .. + 15
			const int half = unit / 8, run = unit / 2 % 4, i = unit % 2 * 16;
			const std::byte* low = src + half * 64 + run % 2 * 32 + i;
			const std::byte* high = src + 128 + half * 32 + i;
			store(r.codes + 128 * b + 8 * unit, nibble_unit(low, run / 2 * 4));
			uint32_t word = 0;
			for (int s = 0; s < 4; ++s) word |= ((load<uint32_t>(high + 4 * s) >> (2 * run)) & 0x03030303u) << (2 * s);
			store(r.high + 64 * b + 4 * unit, word);
		}
		std::memcpy(r.scales + 16 * b, src + 192, 16);
		std::memcpy(r.factors + 2 * b, src + 208, 2);
	}
}

// Converts one row of `cols` elements; all of dst is written.
void to_device_row(DType type, uint32_t cols, const std::byte* src, std::byte* dst) {
	const size_t blocks = cols / dtype_info(type).block, bytes = device_row_bytes(type, cols);
	const auto part = [&](uint at) { return dst + size_t(at) * 16; };
	const WeightTraits traits = weight_traits(uint(type));
	const Row row{dst, part(weight_high_at(traits, cols)), part(weight_scales_at(traits, cols)),
	              part(weight_factors_at(traits, cols))};
	std::memset(dst, 0, bytes); // padding of every part
	switch (type) {
	case DType::F32:
	case DType::F16:
	case DType::BF16: std::memcpy(dst, src, dtype_row_bytes(type, cols)); return;
	case DType::Q8_0: return row_q8_0(src, blocks, row);
	case DType::Q4_0: return row_q4_0(src, blocks, row);
	case DType::Q4_1: return row_q4_1(src, blocks, row);
	case DType::Q4_K: return row_q4_k(src, blocks, row);
	case DType::Q5_K: return row_q5_k(src, blocks, row);
	case DType::Q6_K: return row_q6_k(src, blocks, row);
	case DType::Q5_0: return row_q5_0(src, blocks, row);
	case DType::Q5_1: return row_q5_1(src, blocks, row);
	case DType::Q2_K: return row_q2_k(src, blocks, row);
	case DType::Q3_K: return row_q3_k(src, blocks, row);
	case DType::IQ4_NL: return row_q4_0(src, blocks, row); // the same layout
	case DType::IQ4_XS: return row_iq4_xs(src, blocks, row);
	case DType::MXFP4: return row_mxfp4(src, blocks, row);
	case DType::NVFP4: return row_nvfp4(src, blocks, row);
	case DType::IQ2_XXS: return row_iq2_xxs(src, blocks, row);
	case DType::IQ2_XS: return row_iq2_xs(src, blocks, row);
	case DType::IQ2_S: return row_iq2_s(src, blocks, row);
	case DType::IQ3_XXS: return row_iq3_xxs(src, blocks, row);
	case DType::IQ3_S: return row_iq3_s(src, blocks, row);
	case DType::IQ1_S: return row_iq1_s(src, blocks, row);
	case DType::IQ1_M: return row_iq1_m(src, blocks, row);
	case DType::TQ1_0: return row_tq1_0(src, blocks, row);
	case DType::TQ2_0: return row_tq2_0(src, blocks, row);
	case DType::Q1_0: return row_q1_0(src, blocks, row);
	case DType::Q2_0: return row_q2_0(src, blocks, 64, row);
	case DType::Q2_0_128: return row_q2_0(src, blocks, 128, row);
	case DType::I64:
	case DType::U32: break;
	}
	fail(Code::Internal, "no device row for {}", dtype_info(type).name);
}

} // namespace

size_t device_weight_bytes(const View& w) { return w.shape[0] * device_row_bytes(w.type, uint32_t(w.row_elements())); }

size_t device_row_bytes(DType type, uint32_t cols) {
	KV_ASSERT(type != DType::U32 && cols % dtype_info(type).block == 0);
	return size_t(weight_row_pieces(weight_traits(uint(type)), cols)) * 16;
}

void to_device_rows(DType type, uint32_t cols, const WeightRows& src, std::span<std::byte> dst) {
	const size_t from = dtype_row_bytes(type, cols), to = device_row_bytes(type, cols), n = src.bytes.size() / from;
	KV_ASSERT(src.bytes.size() == n * from && dst.size() == n * to);
	for (size_t r = 0; r < n; ++r) {
		to_device_row(type, cols, src.bytes.data() + r * from, dst.data() + r * to);
		if (has_row_factor(type)) store(dst.data() + (r + 1) * to - 16, src.factor(r));
	}
}

void write_device_rows(const View& w, uint32_t row, uint32_t n, const WeightRows& src,
                       std::span<const std::byte> arranged,
                       const std::function<void(size_t, std::span<const std::byte>)>& write) {
	constexpr size_t kPiece = size_t(4) << 20; // bytes converted at once
	const uint32_t cols = uint32_t(w.row_elements());
	const size_t from = dtype_row_bytes(w.type, cols), to = device_row_bytes(w.type, cols), at = w.at + row * to;
	KV_ASSERT(w.buf && uint64_t(row) + n <= w.shape[0] && w.at % 16 == 0 && src.bytes.size() == n * from);
	KV_ASSERT(arranged.empty() || arranged.size() == n * to);
	if (!arranged.empty()) return write(at, arranged);
	const size_t most = std::max<size_t>(kPiece / to, 1);
	std::vector<std::byte> rows(std::min<size_t>(n, most) * to);
	for (size_t first = 0; first < n; first += most) {
		const size_t count = std::min(most, n - first);
		const auto part = std::span(rows).first(count * to);
		to_device_rows(w.type, cols, src.rows(first, count, from), part);
		write(at + first * to, part);
	}
}

} // namespace kvrun
