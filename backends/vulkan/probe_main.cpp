// kvrun-probe: lists the devices of the Vulkan drivers in its environment, so that a driver that crashes or hangs does
// so in this process. Started by probe.cpp, which describes its output.
#include "backends/vulkan/device.h"
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace {

constexpr unsigned kLongest = 3600; // seconds; the process that started this waits for less

bool say(int fd, const std::string& line) { return write(fd, line.data(), line.size()) == ssize_t(line.size()); }

} // namespace

int main(int argc, char**) {
	if (argc > 1) {
		std::fputs("kvrun-probe: kvrun starts this program to try Vulkan drivers; see `kvrun devices`\n", stderr);
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(kLongest);
	const rlimit none{0, 0};
	setrlimit(RLIMIT_CORE, &none);
	const int report = fcntl(1, F_DUPFD_CLOEXEC, 10);
	if (report < 0 || !say(report, "begin\n")) return 1;
	dup2(2, 1); // a driver's output must not appear in the report
	try {
		kvrun::vk::Instance instance("");
		kvrun::vk::candidates(instance, {});
	} catch (...) {} // no driver or no device: the caller finds that out itself
	say(report, "done " + std::to_string(getpid()) + "\n");
	_exit(0); // skips destructors of drivers
}
