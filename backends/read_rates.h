// How fast a device's ops read weights: measured once for each build of driver and kernels, and remembered.
#pragma once
#include "backends/registry.h"

namespace kvrun {

// The rates of device number `listed` of BackendOptions::device without opening it: measured before, or given by
// BackendOptions::test_caps: rate=300000000000,bus=25000000000 of each device, rate1=100000000000 of the second one.
ReadRates known_rates(const DeviceReport&, const BackendOptions&, size_t listed = 0);
// The same; what is unknown is measured by decode ops on some MiB of zeros, in about 50 ms each, and remembered in
// BackendOptions::cache_dir. 0 where the device has no memory left for that, or cannot read host memory in place.
ReadRates read_rates(Backend&, const DeviceReport&, const BackendOptions&, size_t listed = 0);

} // namespace kvrun
