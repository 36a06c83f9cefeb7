// short_conv, pool_blocks, delta_rule, ssm_scan, selective_scan on Vulkan.
#include "backends/vulkan/kernel_choice.h"
#include "backends/vulkan/vulkan_backend.h"
#include "shared/push.h"
#include <cmath>

namespace kvrun::vk {

void VulkanBackend::compute(const op::ShortConv& o) {
	const uint32_t channels = o.channels(), taps = o.taps();
	const uint32_t flags = (o.how.silu ? CONV_SILU : 0) | (o.how.bias ? CONV_BIAS : 0) |
	                       (o.how.gates ? CONV_GATES : 0) | (o.how.mixes ? CONV_MIXES : 0);
	const ConvChoice how = choose_short_conv(caps(), taps, flags);
	const ShortConvPush push{.channels = channels, .mixes = o.how.mixes, .plane = uint32_t(o.x.elements())};
	rec_.dispatch(
	    pipeline(how), push,
	    {bind(o.out), bind(o.x), bind(o.w), bind(o.rows.work), bind(o.rows.from), bind(o.rows.to),
	     bind(o.how.bias    ? o.how.bias
	          : o.how.gates ? o.how.gates
	                        : o.w)},
	    {ceil_div(channels, kShortConvLocal), o.rows.work.shape[0], how.rows ? ceil_div(o.x.shape[0], how.rows) : 1},
	    {.label = "short_conv", .bytes = o.bytes(), .flops = 2. * taps * double(o.x.elements())});
}

void VulkanBackend::compute(const op::PoolBlocks& o) {
	const PoolBlocksPush push{.dim = o.dim(), .block = o.places.shape[0]};
	rec_.dispatch(
	    pipeline(choose_pool_blocks(o.overlaps() ? POOL_OVERLAP : 0)), push,
	    {bind(o.out), bind(o.x), bind(o.gates), bind(o.places), bind(o.rows.work), bind(o.rows.from), bind(o.rows.to)},
	    {ceil_div(o.dim(), kPoolLocal), o.rows.work.shape[0]},
	    {.label = "pool_blocks", .bytes = o.bytes(), .flops = 8. * double(o.x.elements())});
}

void VulkanBackend::compute(const op::DeltaRule& o) {
	const uint32_t heads = o.out.shape[1], v_dim = o.out.shape[2], k_dim = o.how.k_dim;
	const StateChoice how =
	    choose_delta_rule(caps(), k_dim, v_dim, {o.how.by_channel, o.how.bound < 0, bool(o.gates.removal)});
	const op::DeltaPlaces at = o.places();
	const DeltaRulePush push{.n_heads = heads,
	                         .n_key_heads = o.how.n_key_heads,
	                         .v_dim = v_dim,
	                         .key_stride = at.key_stride,
	                         .value_stride = at.value_stride,
	                         .k_at = at.k,
	                         .v_at = at.v,
	                         .tiled = o.how.tiled,
	                         .eps = o.how.eps,
	                         .scale = 1 / std::sqrt(float(k_dim)),
	                         .bound = o.how.bound};
	const Groups groups{ceil_div(v_dim, how.cols), heads, o.rows.work.shape[0]};
	const Work cost{.label = "delta_rule", .bytes = o.bytes(), .flops = 7. * k_dim * double(o.out.elements())};
	if (o.gates.removal)
		rec_.dispatch(pipeline(how), push,
		              {bind(o.out), bind(o.x), bind(o.gates.beta), bind(o.gates.alpha), bind(o.gates.rate),
		               bind(o.gates.shift), bind(o.rows.work), bind(o.rows.from), bind(o.rows.to),
		               bind(o.gates.removal), bind(o.gates.taken), bind(o.gates.bonus), bind(o.own)},
		              groups, cost);
	else
		rec_.dispatch(pipeline(how), push,
		              {bind(o.out), bind(o.x), bind(o.gates.beta), bind(o.gates.alpha), bind(o.gates.rate),
		               bind(o.gates.shift), bind(o.rows.work), bind(o.rows.from), bind(o.rows.to)},
		              groups, cost);
}

void VulkanBackend::compute(const op::SsmScan& o) {
	const uint32_t heads = o.out.shape[1], v_dim = o.out.shape[2], k_dim = o.how.k_dim;
	const StateChoice how = choose_ssm_scan(caps(), k_dim, v_dim);
	const SsmScanPush push{
	    .n_heads = heads, .n_groups = o.how.n_groups, .v_dim = v_dim, .channels = uint32_t(o.x.row_elements())};
	rec_.dispatch(pipeline(how), push,
	              {bind(o.out), bind(o.x), bind(o.gates.step), bind(o.gates.rate), bind(o.gates.shift),
	               bind(o.gates.skip), bind(o.rows.work), bind(o.rows.from), bind(o.rows.to)},
	              {ceil_div(v_dim, how.cols), heads, o.rows.work.shape[0]},
	              {.label = "ssm_scan", .bytes = o.bytes(), .flops = 5. * k_dim * double(o.out.elements())});
}

void VulkanBackend::compute(const op::SelectiveScan& o) {
	const uint32_t channels = o.out.shape[1];
	const SelectiveScanPush push{.channels = channels};
	rec_.dispatch(pipeline(choose_selective_scan(o.k_dim())), push,
	              {bind(o.out), bind(o.x), bind(o.gates.step), bind(o.gates.b), bind(o.gates.c), bind(o.gates.rate),
	               bind(o.gates.shift), bind(o.gates.skip), bind(o.rows.work), bind(o.rows.from), bind(o.rows.to)},
	              {ceil_div(channels, kSelectiveLocal), o.rows.work.shape[0]},
	              {.label = "selective_scan", .bytes = o.bytes(), .flops = 6. * o.k_dim() * double(o.out.elements())});
}

} // namespace kvrun::vk
