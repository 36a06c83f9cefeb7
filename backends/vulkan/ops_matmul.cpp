// matmul on Vulkan.
#include "backends/vulkan/vulkan_backend.h"
#include <cstring>

namespace kvrun::vk {

size_t VulkanBackend::weight_row_bytes(DType t, uint32_t cols) const { return (dtype_row_bytes(t, cols) + 15) / 16 * 16; }
void VulkanBackend::write_weight(const View& w, uint32_t row, uint32_t n, std::span<const std::byte> src) {
	const size_t from = dtype_row_bytes(w.type, w.row_elements()), to = weight_row_bytes(w.type, uint32_t(w.row_elements()));
	KV_ASSERT(src.size() == n * from && row + n <= w.shape[0]);
	for (uint32_t r = 0; r < n; ++r) rec_.write(w.buf->id(), w.at + (row + r) * to, src.subspan(r * from, from));
}
void VulkanBackend::matmul(std::span<const Proj>, View, Epilogue, bool) { fail(Code::Unsupported, "matmul: not on Vulkan"); }
void matmul_uses(const Caps&, std::vector<KernelUse>&) {}

} // namespace kvrun::vk
