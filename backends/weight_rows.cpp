// GGUF rows to the rows of shaders/shared/weight_row.h.
#include "backends/weight_rows.h"
#include "engine/core/error.h"
#include "shaders/shared/weight_row.h"
#include <bit>
#include <cstring>

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

struct Row { // where the parts of one device row are
	std::byte *codes, *high, *scales, *factors;
};

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
		for (int run = 0; run < 8; ++run) {
			uint32_t word = 0;
			for (int s = 0; s < 8; ++s) word |= ((load<uint32_t>(src + 16 + 4 * s) >> run) & 0x01010101u) << s;
			store(r.high + 32 * b + 4 * run, word);
		}
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

// One row of `cols` elements; all of dst is written.
void to_device_row(DType type, uint32_t cols, const std::byte* src, std::byte* dst) {
	const size_t blocks = cols / dtype_info(type).block, bytes = device_row_bytes(type, cols);
	const auto part = [&](uint at) { return dst + size_t(at) * 16; };
	const WeightTraits traits = weight_traits(uint(type));
	const Row row{dst, part(weight_high_at(traits, cols)), part(weight_scales_at(traits, cols)),
	              part(weight_factors_at(traits, cols))};
	std::memset(dst, 0, bytes); // the padding of every part
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
	case DType::U32: break;
	}
	fail(Code::Internal, "no device row for {}", dtype_info(type).name);
}

} // namespace

size_t device_row_bytes(DType type, uint32_t cols) {
	KV_ASSERT(type != DType::U32 && cols % dtype_info(type).block == 0);
	return size_t(weight_row_pieces(weight_traits(uint(type)), cols)) * 16;
}

void to_device_rows(DType type, uint32_t cols, std::span<const std::byte> src, std::span<std::byte> dst) {
	const size_t from = dtype_row_bytes(type, cols), to = device_row_bytes(type, cols), n = src.size() / from;
	KV_ASSERT(src.size() == n * from && dst.size() == n * to);
	for (size_t r = 0; r < n; ++r) to_device_row(type, cols, src.data() + r * from, dst.data() + r * to);
}

void write_device_rows(const View& w, uint32_t row, uint32_t n, std::span<const std::byte> src,
                       std::span<const std::byte> arranged,
                       const std::function<void(size_t, std::span<const std::byte>)>& write) {
	constexpr size_t kPiece = size_t(4) << 20; // bytes converted at once
	const uint32_t cols = uint32_t(w.row_elements());
	const size_t from = dtype_row_bytes(w.type, cols), to = device_row_bytes(w.type, cols), at = w.at + row * to;
	KV_ASSERT(w.buf && uint64_t(row) + n <= w.shape[0] && w.at % 16 == 0 && src.size() == n * from);
	KV_ASSERT(arranged.empty() || arranged.size() == n * to);
	if (!arranged.empty()) return write(at, arranged);
	const size_t most = std::max<size_t>(kPiece / to, 1);
	std::vector<std::byte> rows(std::min<size_t>(n, most) * to);
	for (size_t first = 0; first < n; first += most) {
		const size_t count = std::min(most, n - first);
		const auto part = std::span(rows).first(count * to);
		to_device_rows(w.type, cols, src.subspan(first * from, count * from), part);
		write(at + first * to, part);
	}
}

} // namespace kvrun
