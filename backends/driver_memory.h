// What is known of drivers, kept in the cache folder until a driver changes or `kvrun devices --retry` forgets it.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace kvrun {

class DriverMemory {
 public:
	explicit DriverMemory(const std::filesystem::path& folder); // empty: nothing is known or kept
	// Why what has this name (a manifest, a device) is bad in this very build; "" where it was found good, null where
	// nothing is known.
	const std::string* find(const std::string& name, const std::string& build) const;
	void add(const std::string& name, const std::string& build, const std::string& why);
	void save() noexcept; // if anything was added; what cannot be written is logged

	static void forget(const std::filesystem::path& folder);

 private:
	struct Entry {
		std::string name, build, why; // build: driver and settings
	};
	std::filesystem::path path_;
	std::vector<Entry> entries_;
	bool changed_ = false;
};

} // namespace kvrun
