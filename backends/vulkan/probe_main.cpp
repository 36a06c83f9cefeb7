// kvrun-probe: lists the devices of the Vulkan drivers in its environment, so that a driver that crashes or hangs does
// so in this process. Started by probe.cpp, which describes its output.
#include "backends/vulkan/device.h"
#include "engine/core/system/files.h"
#include "engine/core/system/process.h"
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr unsigned kLongest = 3600; // seconds; the process that started this waits for less

bool say(int fd, const std::string& line) { return kvrun::sys::write_file(fd, std::as_bytes(std::span(line))); }

} // namespace

int main(int argc, char**) {
	if (argc > 1) {
		std::fputs("kvrun-probe: kvrun starts this program to try Vulkan drivers; see `kvrun devices`\n", stderr);
		return 2;
	}
	const int report = kvrun::sys::become_helper(kLongest); // a driver's output must not appear in it
	if (report < 0 || !say(report, "begin\n")) return 1;
	try {
		kvrun::vk::Instance instance("");
		kvrun::vk::candidates(instance, {});
	} catch (...) {} // no driver or no device: the caller finds that out itself
	say(report, "done " + std::to_string(kvrun::sys::process_id()) + "\n");
	std::_Exit(0); // skips destructors of drivers
}
