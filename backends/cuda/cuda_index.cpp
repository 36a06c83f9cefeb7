// index_score, index_pick, index_live.
#include "backends/cuda/cuda_backend.h"

namespace kvrun::cuda {

void CudaBackend::compute(const op::IndexScore&) { fail(Code::Unsupported, "index_score"); }
void CudaBackend::compute(const op::IndexPick&) { fail(Code::Unsupported, "index_pick"); }
void CudaBackend::compute(const op::IndexLive&) { fail(Code::Unsupported, "index_live"); }

} // namespace kvrun::cuda
