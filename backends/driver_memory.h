// Test results of drivers, kept in the cache folder until a driver changes or `kvrun devices --retry` deletes them.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace kvrun {

class DriverMemory {
 public:
	explicit DriverMemory(const std::filesystem::path& folder); // empty: nothing is loaded or saved
	// Why the manifest or device of this name is bad in exactly this build; "" if it was found good, null if it is
	// unknown.
	const std::string* find(const std::string& name, const std::string& build) const;
	void add(const std::string& name, const std::string& build, const std::string& why);
	void save() noexcept; // writes new entries; a failure is logged

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
