// The CUDA row of the registry: the CUDA runtime and the kernels that nvcc compiled.
#include "backends/cuda/kernels.h"
#include "backends/cuda/open_cuda.h"
#include "backends/cuda/real_runtime.h"

namespace kvrun::cuda {

std::unique_ptr<DeviceSet> find_cuda_devices(const BackendOptions& o) {
	return find_devices(real_runtime(), device::all_kernels(), "cuda", o);
}

} // namespace kvrun::cuda
