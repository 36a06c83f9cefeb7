// Element types of tensors: plain types and GGUF block formats, with their block size in elements and bytes.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvrun {

enum class DType : uint8_t { F32, F16, BF16, U32, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K };
constexpr int kDTypes = 9;

struct DTypeInfo {
	const char* name;
	uint32_t block; // elements per block; 1 for plain types
	uint32_t bytes; // bytes per block in a GGUF file
};

constexpr DTypeInfo dtype_info(DType t) {
	constexpr DTypeInfo table[kDTypes] = {{"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},
	                                      {"U32", 1, 4},      {"Q8_0", 32, 34},   {"Q4_0", 32, 18},
	                                      {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}};
	return table[size_t(t)];
}
constexpr bool is_quantised(DType t) { return dtype_info(t).block > 1; }
// Bytes of a row of `cols` elements in GGUF layout; cols is a multiple of the block size.
constexpr size_t dtype_row_bytes(DType t, size_t cols) { return cols / dtype_info(t).block * dtype_info(t).bytes; }

} // namespace kvrun
