// The CUDA runtime as a table of functions; the driver is loaded when the first of them is called.
#pragma once
#include "backends/cuda/runtime.h"

namespace kvrun::cuda {

const Runtime& real_runtime();

} // namespace kvrun::cuda
