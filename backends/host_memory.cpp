// Information from the system about the host's memory and processor.
#include "backends/host_memory.h"
#include <cstdint>
#include <cstdlib>
#include <fstream>

namespace kvrun {

std::string proc_line(const char* file, const std::string& key) {
	std::ifstream in(file);
	for (std::string line; std::getline(in, line);) {
		const size_t colon = line.find(':');
		if (line.compare(0, key.size(), key) != 0 || colon == std::string::npos) continue;
		const size_t from = line.find_first_not_of(" \t", colon + 1);
		return from == std::string::npos ? "" : line.substr(from);
	}
	return "";
}

static size_t meminfo_bytes(const char* key) { // lines read "MemTotal:  1234 kB"
	return size_t(std::strtoull(proc_line("/proc/meminfo", key).c_str(), nullptr, 10)) * 1024;
}

size_t host_memory_bytes() { return meminfo_bytes("MemTotal"); }

size_t host_free_bytes() {
	const size_t all = host_memory_bytes(), available = meminfo_bytes("MemAvailable"), reserve = all / 10;
	if (all == 0) return SIZE_MAX;
	return available > reserve ? available - reserve : 0;
}

} // namespace kvrun
