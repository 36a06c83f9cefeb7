// Drivers that failed when they were tried, remembered in the cache folder until the driver changes or `kvrun devices
// --retry` forgets them.
#pragma once
#include "backends/vulkan/icd_files.h"
#include <filesystem>
#include <string>
#include <vector>

namespace kvrun::vk {

class DriverMemory {
 public:
	explicit DriverMemory(const std::filesystem::path& folder); // empty: nothing is remembered
	// Why this driver failed, with these very files and settings; empty when that is not known.
	std::string failure(const IcdFile&) const;
	void add(const IcdFile&, const std::string& why);
	void save() noexcept; // if anything was added; what cannot be written is logged

 private:
	struct Entry {
		std::string file, identity, why; // manifest; driver and settings; one line
	};
	std::filesystem::path path_;
	std::string settings_; // hash of driver_environment()
	std::vector<Entry> entries_;
	bool changed_ = false;

	std::string identity(const IcdFile&) const;
};

} // namespace kvrun::vk
