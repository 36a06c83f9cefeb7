// A short test of a device: the main ops on small inputs, against the cpu backend.
#pragma once
#include "backends/backend.h"

namespace kvrun {

// Returns what is wrong with the device's results, in one line; empty if they are correct. Takes some milliseconds and
// the time to compile a dozen pipelines. Throws what an op throws.
std::string self_test(Backend& device, Backend& reference);

} // namespace kvrun
