// The installed Vulkan drivers: the manifests that the loader would find, and the libraries they name.
#pragma once
#include <string>
#include <vector>

namespace kvrun::vk {

struct IcdFile {
	std::string file;    // the manifest, a .json file
	std::string library; // a path, or a name for the system's library search; empty if the manifest has none
	std::string problem; // why the manifest is invalid; empty if it is valid
};
std::vector<IcdFile> icd_files(); // in the loader's order

// Environment variables, one per line, sorted: those that change a driver's behaviour; with `choice`, also those that
// select which drivers the loader finds.
std::string driver_environment(bool choice);

// A text that changes with any update or setting of this driver: path, size, time and build ID of its library and of
// its manifest, and a hash of driver_environment().
std::string driver_build(const IcdFile&);

} // namespace kvrun::vk
