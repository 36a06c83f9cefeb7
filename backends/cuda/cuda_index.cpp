// index_score, index_pick, index_live: which tokens a row attends to.
#include "backends/cuda/cuda_backend.h"

namespace kvrun::cuda {

void CudaBackend::compute(const op::IndexScore& o) {
	const auto& [score, q, weights, keys, work, pool] = o;
	const uint32_t T = q.shape[0], dim = q.shape[2];
	launch(dim > kNarrowKey ? kernels_.index_score_wide : kernels_.index_score,
	       {work.shape[0], groups(T, kIndexRows), 1}, kThreads,
	       IndexScoreArgs{data<float>(score), data<float>(q), data<float>(weights), data<uint32_t>(keys),
	                      data<uint32_t>(work), q.shape[1], dim, score.shape[1], pool},
	       {"index_score", o.bytes()});
}

void CudaBackend::compute(const op::IndexPick& o) {
	const auto& [bits, score, seen, block, most, local] = o;
	launch(kernels_.index_pick, {score.shape[0], 1, 1}, kPickThreads,
	       IndexPickArgs{data<uint32_t>(bits), data<float>(score), data<uint32_t>(seen), bits.shape[1], score.shape[1],
	                     block, most, local},
	       {"index_pick", 4. * double(score.elements() + bits.elements())});
}

void CudaBackend::compute(const op::IndexLive& o) {
	const auto& [tables, bits, work] = o;
	launch(kernels_.index_live, {work.shape[0], kLiveBlocks, 1}, kThreads,
	       IndexLiveArgs{data<uint32_t>(tables), data<uint32_t>(bits), data<uint32_t>(work), bits.shape[1]},
	       {"index_live", o.bytes()});
}

} // namespace kvrun::cuda
