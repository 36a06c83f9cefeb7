// Devices that stay open between the tests of a program. SwiftShader keeps no compiled kernels on disk, and compiling
// them takes nearly all of its time: an engine that opens the device that an earlier one has closed finds them
// compiled.
#pragma once
#include "backends/registry.h"

namespace kvrun {

// Options that open this device, or the open one if it was opened before with the same options. Two engines that use it
// at the same time share its memory and its queue.
BackendOptions kept_device(const BackendOptions&);
void close_kept_devices();

} // namespace kvrun
