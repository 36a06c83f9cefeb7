// Opens one device, or several that divide the layers of a model among them.
#pragma once
#include "backends/registry.h"

namespace kvrun {

// BackendOptions::device may list devices, separated by commas; each is named as a single one is. The layers are
// divided by BackendOptions::split: numbers in proportion to which the devices get layers, one for each; empty or
// "auto": in proportion to their free memory. Throws Error: Invalid for a wrong split, a device that is listed twice or
// more devices than layers; Device as open_backend().
struct OpenedDevices {
	std::unique_ptr<Backend> backend;
	std::string text; // split_text(); empty for one device
};
OpenedDevices open_devices(const BackendOptions&, uint32_t n_layers);
// Options for the first listed device alone.
BackendOptions first_device(BackendOptions);
// What find_device() says of each listed device, and what they are together.
struct FoundDevices {
	std::vector<DeviceReport> devices; // as listed
	std::vector<uint32_t> layers;      // of each
	DeviceInfo together;
};
FoundDevices find_devices(const BackendOptions&, uint32_t n_layers);
// "layers: 20 on A, 12 on B"
std::string split_text(const FoundDevices&);

} // namespace kvrun
