// route, sort_slots, expert_matmul, expert_sum on Vulkan.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "backends/weight_rows.h"
#include "shared/flags.h"
#include "shared/push.h"
#include <algorithm>
#include <array>

namespace kvrun::vk {

void VulkanBackend::compute(const op::Route& o) {
	const auto& [ids, weights, logits, a] = o;
	const uint32_t rows = ids.shape[0], n_experts = logits.shape[1], across = std::min(rows, kMostRows);
	const uint32_t flags = (a.gating == Gating::Sigmoid ? ROUTE_SIGMOID : 0) |
	                       (a.gating == Gating::Near ? ROUTE_NEAR : 0) | (a.normalise ? ROUTE_NORMALISED : 0) |
	                       (a.bias ? ROUTE_BIAS : 0) | (a.expert_scale ? ROUTE_EXPERT_SCALE : 0) |
	                       (a.gating == Gating::SqrtSoftplus ? ROUTE_SOFTPLUS : 0) | (a.of_tokens ? ROUTE_BY_TOKEN : 0);
	const RoutePush push{.n_experts = n_experts,
	                     .used = ids.shape[1],
	                     .rows = rows,
	                     .row_stride = across,
	                     .n_groups = a.n_groups,
	                     .used_groups = a.used_groups,
	                     .scale = a.scale};
	rec_.dispatch(
	    pipeline(choose_route(caps(), n_experts, flags)), push,
	    {bind(ids), bind(weights), bind(logits), bind(a.bias), bind(a.expert_scale), bind(a.of_tokens), bind(a.tokens)},
	    {across, ceil_div(rows, kMostRows), 1},
	    {.label = "route", .bytes = 4.0 * double(logits.elements() + 2 * ids.elements())});
}

void VulkanBackend::compute(const op::SortSlots& o) {
	const auto& [tiles, ids, n_experts] = o;
	const SortSlotsPush push{.n_experts = n_experts, .n_slots = uint32_t(ids.elements()), .n_tiles = tiles.shape[0]};
	rec_.dispatch(pipeline(choose_sort_slots(caps(), n_experts)), push, {bind(tiles), bind(ids)}, {1, 1, 1},
	              {.label = "sort_slots", .bytes = 4.0 * double(2 * ids.elements() + tiles.elements())});
}

void VulkanBackend::compute(const op::ExpertSum& o) {
	const auto& [x, y, weights] = o;
	const uint32_t rows = x.shape[0], dim = uint32_t(x.row_elements()), across = std::min(rows, kMostRows);
	if (dim % 4) fail(Code::Unsupported, "expert_sum: rows of {} elements, Vulkan kernels need a multiple of 4", dim);
	const Choice how = choose_expert_sum(caps());
	const ExpertSumPush push{.dim = dim, .used = weights.shape[1], .rows = rows, .row_stride = across};
	rec_.dispatch(pipeline(how), push, {bind(x), bind(y), bind(weights)},
	              {ceil_div(dim / 4, how.spec[0].value), across, ceil_div(rows, kMostRows)},
	              {.label = "expert_sum", .bytes = 4.0 * double(2 * x.elements() + y.elements())});
}

void VulkanBackend::compute(const op::ExpertMatmul& o) {
	const auto& [projs, x, e, epilogue, decode] = o;
	if (x.row_elements() % 4)
		fail(Code::Unsupported, "matmul: rows of {} elements, Vulkan kernels need a multiple of 4", x.row_elements());
	MatmulX in{.x = aligned_rows(x)};
	if (!decode) prepare_rows(in, projs);
	if (epilogue == Epilogue::None) {
		for (const Proj& p : projs) multiply_experts({&p, 1}, in, e, MATMUL_STORE, decode);
		return;
	}
	const uint32_t clamped = epilogue == Epilogue::ClampedSwiGLU ? MATMUL_CLAMPED : 0;
	if (binds_together(projs)) return multiply_experts(projs, in, e, MATMUL_SWIGLU | clamped, decode);
	const Proj up{projs[0].out, projs[1].w, projs[1].bias}; // separately: first g, then out = glu(out, u)
	multiply_experts(projs.first(1), in, e, MATMUL_STORE, decode);
	multiply_experts({&up, 1}, in, e, MATMUL_GATE | clamped, decode);
}

namespace {

struct Range { // bytes of a buffer from the first view to the end of the last
	Bind bind = {};
	void add(const View& v, uint64_t bytes) {
		if (!v) return;
		const uint64_t begin = bind.bytes ? std::min<uint64_t>(bind.at, v.at) : v.at;
		const uint64_t end = std::max<uint64_t>(bind.at + bind.bytes, v.at + bytes);
		bind = {v.buf->id(), begin, end - begin};
	}
};

} // namespace

// Whether gates and factors have one type, lie in one buffer, and fit one binding together.
bool VulkanBackend::binds_together(std::span<const Proj> projs) const {
	const Proj &a = projs[0], &b = projs[1];
	if (a.w.type != b.w.type || a.w.buf->id() != b.w.buf->id()) return false;
	if (a.bias && b.bias && a.bias.buf->id() != b.bias.buf->id()) return false;
	Range w, bias;
	for (const Proj& p : projs) w.add(p.w, device_weight_bytes(p.w)), bias.add(p.bias, 4 * uint64_t(p.w.shape[0]));
	constexpr uint64_t slack = 256; // largest loss by offset alignment
	return w.bind.bytes + slack <= weight_range(caps()) && bias.bind.bytes + slack <= caps().range;
}

// One projection, or a gate and its factor. Experts that do not fit one binding are multiplied in pieces of whole
// experts.
void VulkanBackend::multiply_experts(std::span<const Proj> projs, const MatmulX& in, const ExpertRows& e,
                                     uint32_t epilogue, bool decode) {
	const View& x = in.x;
	const DType type = projs[0].w.type;
	const uint32_t d = projs[0].w.shape[0] / e.n_experts, slots = uint32_t(e.ids.elements()),
	               cols = uint32_t(x.row_elements()), n = uint32_t(projs.size());
	const MatmulChoice how = choose_expert_matmul(caps(), type, n * d, cols, slots, e.n_experts, epilogue, decode);
	const uint64_t expert_bytes = d * device_row_bytes(type, cols);
	const uint32_t most = n > 1 ? e.n_experts : rows_per_binding(expert_bytes, weight_range(caps()));
	Pipeline& p = pipeline(how);
	Range bias;
	for (const Proj& proj : projs) bias.add(proj.bias, 4 * uint64_t(proj.w.shape[0]));
	const RowsOfX taken = rows_of_x(how.kernel);
	const bool grid = uses_grid(type);
	const size_t n_binds = p.reflection->bindings.size();
	const Bind list = bind(decode ? e.ids : e.tiles);
	for (uint32_t first = 0; first < e.n_experts; first += most) {
		const uint32_t count = std::min(most, e.n_experts - first);
		Range w;
		for (const Proj& proj : projs) {
			View piece = proj.w;
			piece.at += first * expert_bytes;
			w.add(piece, count * expert_bytes);
		}
		MatmulPush push{};
		push.cols = cols;
		push.tokens = x.shape[0];
		push.share = slots / x.shape[0];
		push.first_expert = first;
		push.n_experts = count;
		for (uint32_t i = 0; i < n; ++i) {
			push.rows[i] = d;
			push.stride[i] = d;
			push.w_at[i] = uint32_t((projs[i].w.at + first * expert_bytes - w.bind.at) / 16);
			push.bias_at[i] = projs[i].bias ? uint32_t((projs[i].bias.at - bias.bind.at) / 4) : 0;
			push.bias |= uint32_t(bool(projs[i].bias)) << i;
		}
		// If the list is the fifth binding, it replaces the norm or the units of x.
		std::array<Bind, 7> binds{bind(projs[0].out), w.bind, bind(taken == RowsOfX::Floats ? x : in.rounded),
		                          bias.bind,          list,   list};
		if (grid) binds[n_binds - 1] = bind(grids());
		if (n_binds - grid == 6) binds[4] = bind(taken == RowsOfX::Bytes ? in.units : View());
		const double read =
		    double(std::min(slots, e.n_experts)) * double(count) / e.n_experts * n * double(expert_bytes);
		const double sums = double(slots) * n * d, out = double(slots) * d;
		rec_.dispatch(p, push, std::span(binds).first(n_binds), how.groups,
		              {.label = decode ? "expert_matvec" : "expert_matmul",
		               .bytes = read + 4 * (double(x.elements()) + out),
		               .flops = 2.0 * sums * cols * double(count) / e.n_experts,
		               .continues = first > 0});
	}
}

} // namespace kvrun::vk
