// The registry's interface to the cpu backend.
#pragma once
#include "backends/registry.h"

namespace kvrun {

std::unique_ptr<Backend> make_cpu_backend(bool poison = false); // poison: BackendOptions::poison
std::unique_ptr<DeviceSet> find_cpu_device(const BackendOptions&);

} // namespace kvrun
