// Opens one device, or several that divide the layers of a model among them.
#pragma once
#include "backends/read_rates.h"

namespace kvrun {

// BackendOptions::device may list devices, separated by commas; each is named as a single one is. The layers are
// divided by BackendOptions::split: numbers in proportion to which the devices get layers, one for each; empty or
// "auto": share_layers(), by their free memory and the rates at which they read weights. layer_bytes: what must fit of
// weights and cache for each layer; 0: unknown. Throws Error: Invalid for a wrong split, a device that is listed twice
// or more devices than layers; Device as open_backend().
struct OpenedDevices {
	std::unique_ptr<Backend> backend;
	std::string text;       // split_text(); empty for one device
	ReadRates rates = {};   // of several devices together
	std::string split = {}; // BackendOptions::split that opens them so again
};
OpenedDevices open_devices(const BackendOptions&, uint32_t n_layers, uint64_t layer_bytes = 0);
// Options for the first listed device alone.
BackendOptions first_device(BackendOptions);
// What find_device() says of each listed device, and what they are together.
struct FoundDevices {
	std::vector<DeviceReport> devices; // as listed
	std::vector<ReadRates> rates;      // of each, as far as they are known
	std::vector<uint32_t> layers;      // of each
	DeviceInfo together;
	ReadRates rates_together;
};
FoundDevices find_devices(const BackendOptions&, uint32_t n_layers, uint64_t layer_bytes = 0);
// "layers: 20 on A (936 GB/s), 12 on B (360 GB/s)"; a rate that is unknown is left out
std::string split_text(const FoundDevices&);

} // namespace kvrun
