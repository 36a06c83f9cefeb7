// CUDA ops of recurrent layers: fill the kernel's arguments, launch.
#include "backends/cuda/cuda_backend.h"
#include <bit>
#include <cmath>

namespace kvrun::cuda {

StatePlaces CudaBackend::places(const StateRows& r) {
	if (r.work.shape[0] > kMostBlocks)
		fail(Code::Unsupported, "{} sequences in one step, CUDA goes up to {}", r.work.shape[0], kMostBlocks);
	return {data<uint32_t>(r.work), data<float>(r.from), data<float>(r.to)};
}

void CudaBackend::compute(const op::ShortConv& o) {
	const uint32_t channels = o.channels();
	launch(kernels_.short_conv, {groups(channels, kThreads), o.rows.work.shape[0], groups(o.x.shape[0], kConvTile)},
	       kThreads,
	       ShortConvArgs{data<float>(o.out), data<float>(o.x), data<float>(o.w), data<float>(o.how.bias),
	                     data<float>(o.how.gates), places(o.rows), channels, o.taps(), o.how.silu, o.how.mixes,
	                     o.x.shape[0]},
	       {"short_conv", o.bytes()});
}

void CudaBackend::compute(const op::PoolBlocks& o) {
	launch(kernels_.pool_blocks, {groups(o.dim(), kThreads), o.rows.work.shape[0], 1}, kThreads,
	       PoolBlocksArgs{data<float>(o.out), data<float>(o.x), data<float>(o.gates), data<float>(o.places),
	                      places(o.rows), o.dim(), uint32_t(o.x.row_elements()), o.places.shape[0]},
	       {"pool_blocks", o.bytes()});
}

void CudaBackend::compute(const op::DeltaRule& o) {
	const uint32_t heads = o.out.shape[1], v_dim = o.out.shape[2], k_dim = o.how.k_dim;
	const op::DeltaPlaces at = o.places();
	launch(o.gates.removal ? kernels_.delta_removal : kernels_.delta_rule,
	       {groups(v_dim, kStateColumns), heads, o.rows.work.shape[0]},
	       std::bit_ceil(groups(k_dim, kStateRows)) * (kStateColumns / kLaneColumns),
	       DeltaRuleArgs{data<float>(o.out),
	                     data<float>(o.x),
	                     data<float>(o.gates.beta),
	                     data<float>(o.gates.alpha),
	                     data<float>(o.gates.rate),
	                     data<float>(o.gates.shift),
	                     places(o.rows),
	                     heads,
	                     o.how.n_key_heads,
	                     k_dim,
	                     v_dim,
	                     at.key_stride,
	                     at.value_stride,
	                     at.k,
	                     at.v,
	                     o.how.tiled,
	                     o.how.by_channel,
	                     o.how.eps,
	                     1 / std::sqrt(float(k_dim)),
	                     o.how.bound,
	                     data<float>(o.gates.removal),
	                     data<float>(o.gates.taken),
	                     data<float>(o.gates.bonus),
	                     data<float>(o.own)},
	       {"delta_rule", o.bytes()});
}

void CudaBackend::compute(const op::SsmScan& o) {
	const uint32_t heads = o.out.shape[1], v_dim = o.out.shape[2], k_dim = o.how.k_dim;
	launch(kernels_.ssm_scan, {groups(v_dim, kStateColumns), heads, o.rows.work.shape[0]},
	       std::bit_ceil(groups(k_dim, kStateRows)) * (kStateColumns / kLaneColumns),
	       SsmScanArgs{data<float>(o.out), data<float>(o.x), data<float>(o.gates.step), data<float>(o.gates.rate),
	                   data<float>(o.gates.shift), data<float>(o.gates.skip), places(o.rows), heads, o.how.n_groups,
	                   k_dim, v_dim, uint32_t(o.x.row_elements())},
	       {"ssm_scan", o.bytes()});
}

void CudaBackend::compute(const op::SelectiveScan& o) {
	const uint32_t channels = o.out.shape[1];
	launch(kernels_.selective_scan, {groups(channels, kSelectiveChannels), o.rows.work.shape[0]}, kSelectiveChannels,
	       SelectiveScanArgs{data<float>(o.out), data<float>(o.x), data<float>(o.gates.step), data<float>(o.gates.b),
	                         data<float>(o.gates.c), data<float>(o.gates.rate), data<float>(o.gates.shift),
	                         data<float>(o.gates.skip), places(o.rows), channels, o.k_dim()},
	       {"selective_scan", o.bytes()});
}

} // namespace kvrun::cuda
