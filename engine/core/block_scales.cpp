// The scales of a GGUF block.
#include "engine/core/block_scales.h"
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include "shaders/shared/weight_row.h"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvrun {
namespace {

bool half_is_finite(const std::byte* p) {
	uint16_t h;
	std::memcpy(&h, p, 2);
	return (h & 0x7c00) != 0x7c00;
}

void put_half(std::byte* p, float x) {
	const uint16_t h = f32_to_f16(x);
	std::memcpy(p, &h, 2);
}

// MXFP4: the first of 32 elements whose value, up to 12, times 2^(e - 128) is 2^128 or more; -1: none.
int first_overflow(const std::byte* block) {
	constexpr uint32_t kFp4[8] = {0, 1, 2, 3, 4, 6, 8, 12}; // by code; the fourth bit is the sign
	const uint32_t e = std::to_integer<uint32_t>(block[0]);
	for (int i = 0; e > 252 && i < 32; ++i)
		if (kFp4[std::to_integer<uint32_t>(block[1 + i % 16] >> i / 16 * 4) & 7] >= 1u << (256 - e)) return i;
	return -1;
}

constexpr int kE4m3Scales = 4; // of a block, for 16 elements each

// SCALE_E4M3: the first element whose scale has a NaN code; -1: none.
int first_nan_scale(const std::byte* scales) {
	for (int i = 0; i < kE4m3Scales; ++i)
		if ((scales[i] & std::byte(0x7f)) == std::byte(0x7f)) return 16 * i;
	return -1;
}

// The code below or above x, of the numbers that weight_e4m3() gives; `draw` decides, so that many codes have the root
// mean square x.
std::byte e4m3_code(float x, float draw) {
	const float u = std::min(x * 1024, 15.f * (1 << 14)); // code 8s + m is m * 2^s, s = 0 for m < 16
	int exponent;
	std::frexp(u, &exponent);
	const int s = std::max(exponent - 4, 0), m = int(std::ldexp(u, -s));
	const float low = std::ldexp(float(m), s), high = std::ldexp(float(m + 1), s);
	const int code = 8 * s + m + (draw < (u * u - low * low) / (high * high - low * low));
	return std::byte(std::min(code, 0x7e));
}

// IQ1_M: nibble i of d is the upper one of byte 2i + 1.
uint16_t scattered_half(const std::byte* p) {
	uint32_t h = 0;
	for (int i = 0; i < 4; ++i) h |= std::to_integer<uint32_t>(p[2 * i + 1]) >> 4 << 4 * i;
	return uint16_t(h);
}
void put_scattered_half(std::byte* p, float x) {
	const uint32_t h = f32_to_f16(x);
	for (int i = 0; i < 4; ++i) p[2 * i + 1] = (p[2 * i + 1] & std::byte(15)) | std::byte((h >> 4 * i & 15) << 4);
}

} // namespace

int first_not_finite_of_block(DType type, const std::byte* block) {
	const TensorTypeInfo info = tensor_type_info(type);
	KV_ASSERT(info.scales_at >= 0);
	if (info.scale == SCALE_E8M0) return first_overflow(block);
	if (info.scale == SCALE_E4M3) return first_nan_scale(block + info.scales_at);
	const bool finite = info.codes == CODE_IQ1_M ? (scattered_half(block + info.scales_at) & 0x7c00) != 0x7c00
	                                             : half_is_finite(block + info.scales_at) &&
	                                                   (info.middle == 0 || half_is_finite(block + info.scales_at + 2));
	return finite ? -1 : 0;
}

void set_block_scales(DType type, std::byte* block, float rms, float draw) {
	const TensorTypeInfo info = tensor_type_info(type);
	KV_ASSERT(info.scales_at >= 0);
	const float d = rms / info.rms;
	if (info.scale == SCALE_E8M0) {
		int exponent;
		const float x = 2 * std::frexp(d, &exponent); // 1 <= x < 2, d = x 2^(exponent - 1)
		if (draw < (x * x - 1) / 3) ++exponent;
		block[info.scales_at] = std::byte(std::clamp(exponent - 1 + 128, 2, 252));
		return;
	}
	if (info.scale == SCALE_E4M3) { // different ones, their mean square is d * d
		constexpr float kParts[kE4m3Scales] = {0.5f, 0.75f, 1, 1.479f};
		const int first = std::min(int(draw * kE4m3Scales), kE4m3Scales - 1);
		const float rest = draw * kE4m3Scales - float(first);
		for (int i = 0; i < kE4m3Scales; ++i) {
			const float turned = rest + float(i) / kE4m3Scales;
			block[info.scales_at + i] = e4m3_code(d * kParts[(first + i) % kE4m3Scales], turned - std::floor(turned));
		}
		return;
	}
	if (info.codes == CODE_IQ1_M) return put_scattered_half(block + info.scales_at, d);
	put_half(block + info.scales_at, d);
	const float sign = info.scale == SCALE_HALF_MIN ? -1.f : 1.f; // m is added, dmin subtracted
	if (info.middle != 0) put_half(block + info.scales_at + 2, sign * d * info.middle);
}

} // namespace kvrun
