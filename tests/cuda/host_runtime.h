// The CUDA runtime's table of functions on the host: memory comes from malloc, kernels run by host_grid.h, copies to
// the host are done when they are waited for. Calls can be made to fail.
#pragma once
#include "backends/cuda/runtime.h"
#include <cstdint>
#include <map>
#include <string>

namespace kvrun::cuda {

const Runtime& host_runtime();
const Kernels& host_kernels();

struct CudaFaults {
	std::map<std::string, uint64_t> calls; // since reset(), by function
	uint64_t failed = 0;                   // calls of these that failed
	size_t live = 0;                       // existing allocations, streams and events

	// Calls first to last of a function return `result`; sticky: from then on every call of every function does, except
	// those that release something.
	void fail_calls(std::string function, uint64_t first, uint64_t last, int result, bool sticky = false);
	void reset(); // no call fails, counts start at 0

	int before(const char* function); // result of this call

 private:
	std::string function_;
	uint64_t first_ = 0, last_ = 0;
	int result_ = 0;
	bool sticky_ = false, stuck_ = false;
};
CudaFaults& cuda_faults();

// A row of the registry: backend `cuda-host`.
void add_cuda_host();

} // namespace kvrun::cuda
