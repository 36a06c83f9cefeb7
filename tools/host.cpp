// The build and the machine, for the records of measurements.
#include "tools/host.h"
#include "tools/commit.inc"
#include <fstream>
#include <string_view>

namespace kvrun {
namespace {

// The text after `between` on the first line of a file that begins with `key` and contains `between`.
std::string value_in(const char* path, std::string_view key, std::string_view between) {
	std::ifstream file(path);
	for (std::string line; std::getline(file, line);) {
		const size_t at = line.find(between);
		if (line.starts_with(key) && at != std::string::npos) return line.substr(at + between.size());
	}
	return {};
}

} // namespace

const char* build_commit() { return KVRUN_COMMIT; }

std::string processor_name() { return value_in("/proc/cpuinfo", "model name", ": "); }

std::string os_name() {
	std::string name = value_in("/etc/os-release", "PRETTY_NAME=", "=");
	std::erase(name, '"');
	return name;
}

} // namespace kvrun
