// Opens one device, or several that divide the layers of a model among them.
#include "backends/split_devices.h"
#include "backends/split_backend.h"
#include "engine/core/split.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fmt/ranges.h>
#include <numeric>

namespace kvrun {
namespace {

// One set of options for each device. The names of some drivers have a comma in them.
std::vector<BackendOptions> options_by_device(const BackendOptions& o) {
	std::vector<BackendOptions> all;
	for (std::string_view name : split(o.device, ',')) {
		while (name.starts_with(' ')) name.remove_prefix(1);
		if (name.empty()) fail(Code::Invalid, "the list of devices '{}' has an empty entry", one_line(o.device));
		all.push_back(o);
		all.back().device = name;
	}
	if (all.size() > SplitBackend::kMostParts)
		fail(Code::Invalid, "{} devices are listed, up to {} can divide a model", all.size(), SplitBackend::kMostParts);
	return all;
}

bool names_one_device(const BackendOptions& o) {
	if (o.device.find(',') == std::string::npos) return true;
	BackendOptions all = o;
	all.device.clear();
	return std::ranges::any_of(list_devices(all), [&](const DeviceReport& r) { return r.info.name == o.device; });
}

// Layers of each device for the split's numbers: those in proportion, rounded so that every layer has a device.
std::vector<uint32_t> layers_of_split(const std::string& numbers, size_t n_devices, uint32_t n_layers) {
	std::vector<double> shares;
	for (const std::string_view item : split(numbers, ',')) {
		double share = 0;
		const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), share);
		if (error != std::errc() || end != item.data() + item.size() || !(share > 0) || !std::isfinite(share))
			fail(Code::Invalid, "--split is '{}', expected auto, or a number above 0 for each device",
			     one_line(numbers));
		shares.push_back(share);
	}
	if (shares.size() != n_devices)
		fail(Code::Invalid, "--split has {} number{} for {} devices", shares.size(), shares.size() == 1 ? "" : "s",
		     n_devices);
	const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
	std::vector<uint32_t> layers(n_devices);
	double sum = 0;
	uint32_t given = 0;
	for (size_t d = 0; d < n_devices; ++d) {
		sum += shares[d] / all * n_layers;
		layers[d] = d + 1 == n_devices ? n_layers - given : uint32_t(std::lround(sum)) - given;
		given += layers[d];
		if (!layers[d])
			fail(Code::Invalid, "--split {} leaves device {} without one of the {} layers; leave that device out",
			     one_line(numbers), d, n_layers);
	}
	return layers;
}

std::vector<uint32_t> layers_by_device(const BackendOptions& o, std::span<const DeviceInfo> devices,
                                       std::span<const ReadRates> rates, uint32_t n_layers, uint64_t layer_bytes) {
	if (devices.size() > n_layers)
		fail(Code::Invalid, "{} devices are listed, the model has {} layers", devices.size(), n_layers);
	if (o.split.empty() || o.split == "auto") return share_layers(devices, n_layers, rates, layer_bytes);
	return layers_of_split(o.split, devices.size(), n_layers);
}

void refuse_split_of_one(const BackendOptions& o) {
	if (!o.split.empty() && o.split != "auto")
		fail(Code::Invalid, "--split {} needs several devices: --device A,B", one_line(o.split));
}

// The rate of reading what all layers have, layer by layer.
ReadRates rates_of_all(std::span<const ReadRates> rates, std::span<const uint32_t> layers) {
	const auto together = [&](double ReadRates::*rate) {
		double seconds = 0, n = 0;
		for (size_t d = 0; d < rates.size(); ++d) {
			if (!(rates[d].*rate > 0)) return 0.;
			seconds += layers[d] / (rates[d].*rate), n += layers[d];
		}
		return n / seconds;
	};
	return {together(&ReadRates::device), together(&ReadRates::bus)};
}

} // namespace

FoundDevices find_devices(const BackendOptions& o, uint32_t n_layers, uint64_t layer_bytes) {
	FoundDevices found;
	if (names_one_device(o)) {
		refuse_split_of_one(o);
		found.devices = {find_device(o)};
		found.layers = {n_layers};
		found.together = found.devices[0].info;
		found.rates = {found.rates_together = known_rates(found.devices[0], o)};
		return found;
	}
	std::vector<DeviceInfo> infos;
	for (const BackendOptions& one : options_by_device(o)) {
		const DeviceReport r = find_device(one);
		for (const DeviceReport& before : found.devices)
			if (before.backend == r.backend && before.index == r.index)
				fail(Code::Invalid, "--device {} lists {} twice", one_line(o.device), one_line(r.info.name));
		found.rates.push_back(known_rates(r, one, infos.size()));
		found.devices.push_back(r);
		infos.push_back(r.info);
	}
	found.layers = layers_by_device(o, infos, found.rates, n_layers, layer_bytes);
	found.together = joined(infos, found.layers);
	found.rates_together = rates_of_all(found.rates, found.layers);
	return found;
}

std::string split_text(const FoundDevices& f) {
	std::string s = "layers:";
	for (size_t d = 0; d < f.devices.size(); ++d) {
		s += fmt::format("{} {} on {}", d ? "," : "", f.layers[d], one_line(f.devices[d].info.name));
		if (f.rates[d].device > 0) s += fmt::format(" ({:.3g} GB/s)", f.rates[d].device / 1e9);
	}
	return s;
}

BackendOptions first_device(BackendOptions o) {
	if (!names_one_device(o)) o = options_by_device(o).front();
	o.split.clear();
	return o;
}

OpenedDevices open_devices(const BackendOptions& o, uint32_t n_layers, uint64_t layer_bytes) {
	if (names_one_device(o)) {
		refuse_split_of_one(o);
		return {open_backend(o), ""};
	}
	FoundDevices found = find_devices(o, n_layers, layer_bytes); // refuses wrong lists before a device is opened
	std::vector<SplitPart> parts;
	std::vector<DeviceInfo> infos;
	for (const BackendOptions& one : options_by_device(o)) {
		const size_t d = parts.size();
		parts.push_back({open_backend(one), 0});
		if (o.split.empty() || o.split == "auto" || parts[d].backend->info().mapped_bytes)
			found.rates[d] = read_rates(*parts[d].backend, found.devices[d], one, d);
		infos.push_back(parts[d].backend->info());
	}
	found.layers = layers_by_device(o, infos, found.rates, n_layers, layer_bytes);
	for (size_t d = 0; d < parts.size(); ++d) parts[d].n_layers = found.layers[d];
	return {std::make_unique<SplitBackend>(std::move(parts)), split_text(found),
	        rates_of_all(found.rates, found.layers), fmt::format("{}", fmt::join(found.layers, ","))};
}

} // namespace kvrun
