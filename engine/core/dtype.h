// Element types of tensors: plain types and GGUF block formats, from the table in shaders/shared/tensor_types.h.
#pragma once
#include "shaders/shared/tensor_types.h"
#include <cstddef>
#include <cstdint>

namespace kvrun {

// Types of the table have GGUF's number, or KV_SECOND_FORMAT more. The last two are for words that are not elements of
// a model: I64 in files, for numbers of tokens; U32 on devices, and in files, for numbers of experts.
enum class DType : uint8_t {
#define KV_TYPE(name, id, ...) name = id,
	KV_TENSOR_TYPES(KV_TYPE)
#undef KV_TYPE
	    I64 = 254,
	U32 = 255
};

// The type's number in a GGUF file.
constexpr uint32_t gguf_number(DType t) { return uint32_t(t) & ~KV_SECOND_FORMAT; }

constexpr DType kTensorTypes[] = { // in the order of the table
#define KV_TYPE(name, ...) DType::name,
    KV_TENSOR_TYPES(KV_TYPE)
#undef KV_TYPE
};

struct DTypeInfo {
	const char* name;
	uint32_t block; // elements per block; 1 for plain types
	uint32_t bytes; // per block in a GGUF file
};

constexpr DTypeInfo dtype_info(DType t) {
#define KV_TYPE(name, id, file, elements, bytes, ...)                                                                  \
	case DType::name: return {#name, elements, bytes};
	switch (t) {
		KV_TENSOR_TYPES(KV_TYPE)
	case DType::I64: return {"I64", 1, 8};
	case DType::U32: break;
	}
#undef KV_TYPE
	return {"U32", 1, 4};
}

struct TensorTypeInfo { // further columns of the table
	uint32_t file_type; // general.file_type
	int scales_at;
	float rms, middle;
	uint32_t codes, scale; // CODE_*, SCALE_*
	bool int8;             // kernels of integer dot products take it
};

constexpr TensorTypeInfo tensor_type_info(DType t) {
#define KV_TYPE(name, id, file, elements, bytes, scales_at, rms, middle, c, cb, h, s, sb, fb, z, int8)                 \
	case DType::name: return {file, scales_at, rms, middle, c, s, int8 != 0};
	switch (t) {
		KV_TENSOR_TYPES(KV_TYPE)
	case DType::I64:
	case DType::U32: break;
	}
#undef KV_TYPE
	return {};
}

constexpr bool is_quantised(DType t) { return dtype_info(t).block > 1; }
// Whether the type has kernels of its own that read the grids (iq_grids.h).
constexpr bool uses_grid(DType t) {
	const uint32_t scale = tensor_type_info(t).scale;
	return scale == SCALE_ODD || scale == SCALE_ODD_HALVES;
}
// Whether a row on a device has a factor of its own, an f32.
constexpr bool has_row_factor(DType t) { return tensor_type_info(t).scale == SCALE_E4M3; }
// Bytes of a row of `cols` elements in GGUF layout; cols is a multiple of the block size.
constexpr size_t dtype_row_bytes(DType t, size_t cols) { return cols / dtype_info(t).block * dtype_info(t).bytes; }

} // namespace kvrun
