// embed, norms, sums of streams, activate, copy on Vulkan.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"
#include <algorithm>

namespace kvrun::vk {

void VulkanBackend::compute(const op::Copy& o) {
	const auto& [dst, src] = o;
	rec_.copy(bind(dst), bind(src));
}

void VulkanBackend::compute(const op::Embed& o) {
	const auto& [out, table, tokens] = o;
	const uint32_t n = uint32_t(tokens.elements()), dim = uint32_t(table.row_elements()), vocab = table.shape[0];
	Pipeline& p = pipeline(choose_embed(table.type));
	const size_t row_bytes = weight_row_bytes(table.type, dim);
	const uint32_t piece = std::min(rows_per_binding(row_bytes, caps().range), vocab);
	for (uint32_t first = 0; first < vocab; first += piece) {
		const uint32_t rows = std::min(piece, vocab - first);
		const EmbedPush push{
		    .n_tokens = n, .dim = dim, .first_row = first, .n_rows = rows, .last_piece = first + rows == vocab};
		const Bind part{table.buf->id(), table.at + first * row_bytes, rows * row_bytes};
		const Bind binds[] = {bind(out), part, bind(tokens), uses_grid(table.type) ? bind(grids()) : Bind{}};
		rec_.dispatch(p, push, std::span(binds).first(p.reflection->bindings.size()),
		              {ceil_div(dim, 16 * kEmbedLocal), std::min(n, kMostRows), ceil_div(n, kMostRows)},
		              {.label = "embed", .bytes = double(n) * dim * 8, .flops = 0, .continues = first > 0});
	}
}

void VulkanBackend::compute(const op::RmsNorm& o) {
	const auto& [out, x, w, eps] = o;
	const uint32_t rows = x.shape[0], dim = uint32_t(x.row_elements());
	const bool vec4_aligned = dim % 4 == 0 && aligned16({out, x, w});
	Pipeline& p = pipeline(choose_rmsnorm(caps(), vec4_aligned));
	const uint32_t across = std::min(rows, kMostRows);
	const RmsNormPush push{.dim = dim, .rows = rows, .row_stride = across, .eps = eps, .groups = o.groups()};
	rec_.dispatch(p, push, {bind(out), bind(x), bind(w)}, {across, ceil_div(rows, kMostRows), 1},
	              {.label = "rmsnorm", .bytes = 4.0 * (2.0 * double(x.elements()) + dim)});
}

void VulkanBackend::compute(const op::LayerNorm& o) {
	const auto& [out, x, w, b, eps] = o;
	const uint32_t rows = x.shape[0], dim = uint32_t(x.row_elements()), across = std::min(rows, kMostRows);
	const LayerNormPush push{.dim = dim, .rows = rows, .row_stride = across, .eps = eps, .groups = o.groups()};
	rec_.dispatch(pipeline(choose_layer_norm(caps(), bool(b))), push, {bind(out), bind(x), bind(w), bind(b ? b : w)},
	              {across, ceil_div(rows, kMostRows), 1},
	              {.label = "layer_norm", .bytes = 4.0 * (2.0 * double(x.elements()) + 2.0 * dim)});
}

void VulkanBackend::compute(const op::MatchRms& o) {
	const auto& [out, x, w, like, eps] = o;
	const uint32_t rows = x.shape[0], dim = uint32_t(x.row_elements()), across = std::min(rows, kMostRows);
	const RmsNormPush push{.dim = dim, .rows = rows, .row_stride = across, .eps = eps, .groups = 1};
	rec_.dispatch(pipeline(choose_match_rms(caps())), push, {bind(out), bind(x), bind(w), bind(like)},
	              {across, ceil_div(rows, kMostRows), 1},
	              {.label = "match_rms", .bytes = 4.0 * (3.0 * double(x.elements()) + dim)});
}

void VulkanBackend::compute(const op::GaussianTopK& o) {
	const auto& [out, x, cut] = o;
	const uint32_t rows = x.shape[0], dim = uint32_t(x.row_elements()), across = std::min(rows, kMostRows);
	const GaussianTopKPush push{.dim = dim, .rows = rows, .row_stride = across, .cut = cut};
	rec_.dispatch(pipeline(choose_gaussian_top_k(caps())), push, {bind(out), bind(x)},
	              {across, ceil_div(rows, kMostRows), 1},
	              {.label = "gaussian_top_k", .bytes = 8.0 * double(x.elements())});
}

// Kernels of streams take four elements at a time.
static void check_quads(const char* op, uint32_t dim) {
	if (dim % 4) fail(Code::Unsupported, "{}: rows of {} elements, Vulkan kernels need a multiple of 4", op, dim);
}

void VulkanBackend::compute(const op::StreamSum& o) {
	const auto& [x, y, w, adds] = o;
	const uint32_t rows = w.shape[0], dim = x.dim(), across = std::min(rows, kMostRows);
	check_quads(o.name(), dim);
	const Choice how = choose_stream_sum(caps());
	const StreamSumPush push{.dim = dim,
	                         .m = w.shape[1],
	                         .k = w.shape[2],
	                         .x_first = x.first,
	                         .x_row_stride = x.row_stride(),
	                         .x_stream_stride = x.stream_stride(),
	                         .y_first = y.first,
	                         .y_row_stride = y.row_stride(),
	                         .y_stream_stride = y.stream_stride(),
	                         .rows = rows,
	                         .row_stride = across,
	                         .adds = adds};
	rec_.dispatch(pipeline(how), push, {bind(x.v), bind(y.v), bind(w)},
	              {ceil_div(dim / 4, how.spec[0].value), across, ceil_div(rows, kMostRows)},
	              {.label = "stream_sum", .bytes = o.bytes()});
}

void VulkanBackend::compute(const op::StreamMix& o) {
	const auto& [out, x, gate] = o;
	const uint32_t rows = x.shape[0], m = x.shape[1], dim = x.shape[2], across = std::min(rows, kMostRows);
	check_quads(o.name(), dim);
	const Choice how = choose_stream_mix(caps());
	const StreamMixPush push{.dim = dim, .m = m, .rows = rows, .row_stride = across};
	rec_.dispatch(pipeline(how), push, {bind(out), bind(x), bind(gate)},
	              {ceil_div(dim / 4, how.spec[0].value), across, ceil_div(rows, kMostRows)},
	              {.label = "stream_mix", .bytes = 4.0 * double(out.elements() + 2 * x.elements())});
}

void VulkanBackend::compute(const op::StreamGate& o) {
	const auto& [out, key, query, value] = o;
	const uint32_t m = key.shape[1], rows = key.shape[0] * m, dim = key.shape[2], across = std::min(rows, kMostRows);
	check_quads(o.name(), dim);
	const StreamGatePush push{.dim = dim, .m = m, .rows = rows, .row_stride = across};
	rec_.dispatch(pipeline(choose_stream_gate(caps())), push, {bind(out), bind(key), bind(query), bind(value)},
	              {across, ceil_div(rows, kMostRows), 1},
	              {.label = "stream_gate", .bytes = 4.0 * double(3 * key.elements() + value.elements())});
}

void VulkanBackend::compute(const op::StreamCoefs& o) {
	const Choice how = choose_stream_coefs(caps());
	const uint32_t rows = o.x.shape[0], local = how.spec[0].value, across = std::min(rows, kMostRows * local);
	const StreamCoefsPush push{.m = o.streams(),
	                           .n = uint32_t(o.x.row_elements()),
	                           .rows = rows,
	                           .row_stride = across,
	                           .eps = o.how.eps,
	                           .post_scale = o.how.post_scale,
	                           .post_eps = o.how.post_eps,
	                           .rounds = o.how.rounds};
	rec_.dispatch(pipeline(how), push,
	              {bind(o.pre), bind(o.post ? o.post : o.pre), bind(o.mix ? o.mix : o.pre), bind(o.x), bind(o.scale),
	               bind(o.base)},
	              {ceil_div(across, local), ceil_div(rows, across), 1},
	              {.label = "stream_coefs", .bytes = double(2 * o.x.bytes())});
}

void VulkanBackend::compute(const op::StreamAttend& o) {
	const auto& [out, x, w, eps] = o;
	const uint32_t rows = out.shape[0], dim = x.dim(), across = std::min(rows, kMostRows);
	check_quads(o.name(), dim);
	const StreamAttendPush push{.dim = dim,
	                            .m = x.streams(),
	                            .first = x.first,
	                            .rows = rows,
	                            .row_stride = across,
	                            .x_row_stride = x.row_stride(),
	                            .stream_stride = x.stream_stride(),
	                            .eps = eps};
	rec_.dispatch(pipeline(choose_stream_attend(caps())), push, {bind(out), bind(x.v), bind(w)},
	              {across, ceil_div(rows, kMostRows), 1},
	              {.label = "stream_attend", .bytes = 4.0 * rows * dim * (2 * x.streams() + 1)});
}

void VulkanBackend::compute(const op::Activate& o) {
	const auto& [out, x, y, e] = o;
	KV_ASSERT(out.elements() <= UINT32_MAX / 2);
	const uint32_t n = uint32_t(out.elements()), groups = ceil_div(n, 4 * kActivateLocal);
	const uint32_t across = std::min(groups, kMostRows);
	const uint32_t flags = uint32_t(e.function) | (y ? ACTIVATE_TIMES : 0) | (e.cap > 0 ? ACTIVATE_CAP : 0) |
	                       (e.add ? ACTIVATE_ADD : 0) | (e.each > 1 ? ACTIVATE_EACH : 0);
	const bool clamps = e.function == Activation::Clamp;
	const Xielu& f = e.xielu;
	const ActivatePush push{
	    .n = n,
	    .row_stride = across,
	    .scale = e.scale,
	    .cap = e.cap,
	    .each = e.each,
	    .parameters = {clamps ? e.range.low : f.positive, clamps ? e.range.high : f.negative, f.linear, f.limit}};
	rec_.dispatch(pipeline(choose_activate(flags)), push, {bind(out), bind(x), bind(y ? y : x)},
	              {across, ceil_div(groups, kMostRows), 1},
	              {.label = "activate", .bytes = 4.0 * n * (2 + bool(y) + e.add)});
}

} // namespace kvrun::vk
