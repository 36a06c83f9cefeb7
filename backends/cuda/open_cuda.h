// Lists and opens CUDA devices.
#pragma once
#include "backends/cuda/runtime.h"
#include "backends/registry.h"

namespace kvrun::cuda {

// Devices that `runtime` has, as backend `name`.
std::unique_ptr<DeviceSet> find_devices(const Runtime& runtime, const Kernels& kernels, const char* name,
                                        const BackendOptions&);
// The row of the registry, present if kvrun was built with the CUDA toolkit.
std::unique_ptr<DeviceSet> find_cuda_devices(const BackendOptions&);

} // namespace kvrun::cuda
