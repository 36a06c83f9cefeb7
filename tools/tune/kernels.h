// kvrun tune --kernels: measures which kernels are fastest on a device, and remembers it.
#pragma once
#include <string>

namespace kvrun {

struct TuneKernels {
	std::string device, model; // model: whose sizes are measured; empty: typical ones
	bool forget = false, as_json = false;
};
void tune_kernels(const TuneKernels&);

} // namespace kvrun
