// The factors of a GGUF block.
#include "engine/core/block_scales.h"
#include "engine/core/error.h"
#include "engine/core/f16.h"
#include "shaders/shared/weight_row.h"
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

} // namespace

bool block_is_finite(DType type, const std::byte* block) {
	const TensorTypeInfo info = tensor_type_info(type);
	KV_ASSERT(info.scales_at >= 0);
	return half_is_finite(block + info.scales_at) && (info.middle == 0 || half_is_finite(block + info.scales_at + 2));
}

void set_block_scales(DType type, std::byte* block, float rms) {
	const TensorTypeInfo info = tensor_type_info(type);
	KV_ASSERT(info.scales_at >= 0);
	const float d = rms / info.rms;
	put_half(block + info.scales_at, d);
	const float sign =
	    weight_traits(uint32_t(type)).scale == SCALE_HALF_MIN ? -1.f : 1.f; // m is added, dmin subtracted
	if (info.middle != 0) put_half(block + info.scales_at + 2, sign * d * info.middle);
}

} // namespace kvrun
