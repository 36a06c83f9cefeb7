// Random weights, block by block.
#include "models/synth/blocks.h"
#include "engine/core/block_scales.h"
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include "engine/core/splitmix64.h"
#include <algorithm>
#include <bit>
#include <cstring>

namespace kvrun {
namespace {

constexpr uint64_t kDraws = 64; // random numbers reserved per block; no format needs more

struct Draw { // random numbers of one block
	uint64_t state;
	uint64_t next() { return splitmix64(state += kSplitmixStep); }
	void fill(std::byte* dst, size_t n) {
		for (size_t i = 0; i < n; i += 8) {
			const uint64_t x = next();
			for (size_t k = 0; k < std::min<size_t>(8, n - i); ++k) dst[i + k] = std::byte(x >> 8 * k & 255);
		}
	}
	// Sum of four uniform numbers, scaled to variance 1: approximately normal.
	float normal() {
		const uint64_t x = next();
		const int64_t sum =
		    int64_t(x & 0xffff) + int64_t(x >> 16 & 0xffff) + int64_t(x >> 32 & 0xffff) + int64_t(x >> 48);
		return float(sum - 2 * 65535) * (1.7320508f / 65536);
	}
};

void put_half(std::byte* at, float x) {
	const uint16_t h = f32_to_f16(x);
	std::memcpy(at, &h, 2);
}

// Root mean squares of uniform codes around their middle, and of the sub-scales 4..7.
constexpr float kRms4 = 4.61f, kRms5 = 9.23f, kRms6 = 18.47f, kRmsScale = 5.61f;

// Q4_K, Q5_K: sub-scale and sub-minimum of a sub-block are equal, so dmin = d * (middle code) gives mean 0.
void k_scales(std::byte* b, Draw& draw, float d, float middle) {
	put_half(b, d);
	put_half(b + 2, d * middle);
	const uint64_t x = draw.next();
	for (int j = 0; j < 4; ++j) {
		const auto low = std::byte(4 + (x >> 2 * j & 3)), high = std::byte(4 + (x >> (8 + 2 * j) & 3));
		b[4 + j] = b[8 + j] = low;
		b[12 + j] = high | high << 4;
	}
}

void one_block(DType type, float deviation, Draw draw, std::byte* b) {
	switch (type) {
	case DType::F32: {
		const float x = draw.normal() * deviation;
		std::memcpy(b, &x, 4);
		return;
	}
	case DType::F16: return put_half(b, draw.normal() * deviation);
	case DType::BF16: {
		const uint16_t h = uint16_t(std::bit_cast<uint32_t>(draw.normal() * deviation) >> 16);
		std::memcpy(b, &h, 2);
		return;
	}
	case DType::Q4_K: k_scales(b, draw, deviation / (kRms4 * kRmsScale), 7.5f); return draw.fill(b + 16, 128);
	case DType::Q5_K: k_scales(b, draw, deviation / (kRms5 * kRmsScale), 15.5f); return draw.fill(b + 16, 160);
	case DType::Q6_K: {
		draw.fill(b, 192);
		draw.fill(b + 192, 16);
		for (int i = 192; i < 208; ++i) b[i] = (b[i] & std::byte(3)) | std::byte(4);
		return put_half(b + 208, deviation / (kRms6 * kRmsScale));
	}
	case DType::TQ2_0:
	case DType::Q2_0:
	case DType::Q2_0_128: { // code 3, which files do not use, becomes 1: the RMS is sqrt(1/2)
		const DTypeInfo info = dtype_info(type);
		const int at = tensor_type_info(type).scales_at;
		std::byte* codes = at == 0 ? b + 2 : b;
		draw.fill(codes, info.block / 4);
		for (uint32_t i = 0; i < info.block / 4; ++i) codes[i] &= ~((codes[i] & codes[i] >> 1 & std::byte(0x55)) << 1);
		return put_half(b + at, deviation * 1.4142136f);
	}
	case DType::IQ1_M: // some of its last bits belong to d
		draw.fill(b, 56);
		return set_block_scales(type, b, deviation);
	default: break;
	}
	// Random codes, which lie after or before the scales.
	const TensorTypeInfo info = tensor_type_info(type);
	const bool four = info.middle != 0 || info.scale == SCALE_E4M3;
	const int begin = info.scales_at > 0 ? 0 : info.scale == SCALE_E8M0 ? 1 : four ? 4 : 2;
	draw.fill(b + begin, (info.scales_at > 0 ? size_t(info.scales_at) : dtype_info(type).bytes) - size_t(begin));
	set_block_scales(type, b, deviation, float(draw.next() >> 40) / 0x1p24f);
}

} // namespace

void synth_blocks(DType type, uint64_t stream, float deviation, uint64_t first, std::span<std::byte> dst) {
	const size_t bytes = dtype_info(type).bytes;
	KV_ASSERT(dst.size() % bytes == 0);
	for (uint64_t i = 0; i < dst.size() / bytes; ++i)
		one_block(type, deviation, Draw{stream + (first + i) * kDraws * kSplitmixStep}, dst.data() + i * bytes);
}

} // namespace kvrun
