// Which Vulkan drivers are installed: the manifests the loader would find, and the libraries they name.
#pragma once
#include <string>
#include <vector>

namespace kvrun::vk {

struct IcdFile {
	std::string file;    // the manifest, a .json file
	std::string library; // as the manifest means it: a path, or a name for the system's search; empty without one
	std::string problem; // why this is no manifest; empty if it is one
};
std::vector<IcdFile> icd_files(); // in the loader's order

// Variables of the environment, one a line, sorted: those that change what a driver does; with `choice`, also those
// that decide which drivers the loader finds.
std::string driver_environment(bool choice);

// What an update of this driver, or other settings of it, change: path, size, time and build ID of its library and its
// manifest, and a hash of driver_environment().
std::string driver_build(const IcdFile&);

} // namespace kvrun::vk
