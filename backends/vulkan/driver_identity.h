// What identifies a driver's build, and drivers with known faults.
#pragma once
#include "backends/vulkan/device.h"

namespace kvrun::vk {

std::string uuid_text(const uint8_t (&uuid)[VK_UUID_SIZE]); // 32 hex digits
// The driver's own description, the UUID of its caches (which changes with each build of a GPU driver), its settings,
// and our kernels.
std::string driver_key(const Caps&, const DeviceInfo&);
// DeviceReport::build: also what is computed differently by choice, because each is tested for itself.
std::string device_build(const Caps&, const DeviceReport&);

bool is_turing(const Caps&); // by PCI id: TU102 to TU106, TU116, TU117
// Why a driver's compiler is known to end the process on such a machine ("aarch64"); empty if it is not.
std::string broken_compiler(const std::string& device, const std::string& machine);

} // namespace kvrun::vk
