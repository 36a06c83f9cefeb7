// embed, rmsnorm, copy on Vulkan.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"
#include <algorithm>

namespace kvrun::vk {

void VulkanBackend::copy(View dst, View src) {
	KV_ASSERT(dst.type == src.type && dst.elements() == src.elements());
	rec_.copy(bind(dst), bind(src));
}

void VulkanBackend::embed(View out, View table, View tokens) {
	const uint32_t n = uint32_t(tokens.elements()), dim = uint32_t(table.row_elements()), vocab = table.shape[0];
	KV_ASSERT(out.elements() == size_t(n) * dim && out.type == DType::F32 && tokens.type == DType::U32);
	Pipeline& p = pipeline(choose_embed(table.type));
	const size_t row_bytes = weight_row_bytes(table.type, dim);
	const uint32_t piece = std::min(rows_per_binding(row_bytes, caps().range), vocab);
	for (uint32_t first = 0; first < vocab; first += piece) {
		const uint32_t rows = std::min(piece, vocab - first);
		const EmbedPush push{
		    .n_tokens = n, .dim = dim, .first_row = first, .n_rows = rows, .last_piece = first + rows == vocab};
		const Bind part{table.buf->id(), table.at + first * row_bytes, rows * row_bytes};
		rec_.dispatch(p, push, {bind(out), part, bind(tokens)},
		              {ceil_div(dim, 16 * kEmbedLocal), std::min(n, kMostRows), ceil_div(n, kMostRows)},
		              {.label = "embed", .bytes = double(n) * dim * 8, .flops = 0, .continues = first > 0});
	}
}

void VulkanBackend::rmsnorm(View out, View x, View w, float eps) {
	const uint32_t rows = x.shape[0], dim = uint32_t(x.row_elements());
	KV_ASSERT(out.elements() == x.elements() && w.elements() == dim);
	const bool vec4_aligned = dim % 4 == 0 && aligned16({out, x, w});
	Pipeline& p = pipeline(choose_rmsnorm(caps(), vec4_aligned));
	const uint32_t across = std::min(rows, kMostRows);
	const RmsNormPush push{.dim = dim, .rows = rows, .row_stride = across, .eps = eps};
	rec_.dispatch(p, push, {bind(out), bind(x), bind(w)}, {across, ceil_div(rows, kMostRows), 1},
	              {.label = "rmsnorm", .bytes = 4.0 * (2.0 * double(x.elements()) + dim)});
}

} // namespace kvrun::vk
