// A Vulkan driver that misbehaves when the loader calls it, as KVRUN_HOSTILE_DRIVER says; by default it crashes.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace {

int* volatile no_int = nullptr;
void (*volatile no_function)() = nullptr;

[[noreturn]] void sleep_for_ever() {
	for (;;) pause();
}

void misbehave() {
	const char* how = std::getenv("KVRUN_HOSTILE_DRIVER");
	const auto is = [&](const char* name) { return how && !std::strcmp(how, name); };
	if (is("exit")) std::exit(0);
	if (is("silent exit")) _exit(0);
	if (is("hang")) sleep_for_ever();
	if (is("slow")) { // like a machine that wakes its GPUs first
		sleep(4);
		return;
	}
	if (is("drip"))
		for (;;) usleep(100000), std::fputs("still at it\n", stderr);
	if (is("flood"))
		for (;;) std::fputs("a line among many, and no end of them\n", stderr);
	if (is("lie")) { // writes the helper's words to every descriptor
		const char words[] = "begin\ndone 1\n";
		for (int fd = 1; fd < 64; ++fd)
			if (write(fd, words, sizeof words - 1) < 0) continue;
		_exit(0);
	}
	if (is("copy") && fork() > 0) _exit(0); // a copy continues in its place
	if (is("helper")) {                     // harmless: leaves a process that holds every descriptor
		if (fork() == 0) {
			signal(SIGTERM, SIG_IGN);
			sleep_for_ever();
		}
		return;
	}
	if (is("segv")) *no_int = 1;
	if (is("null call")) no_function();
	if (how && *how && !is("crash")) return;
	std::fputs("hostile_driver: no chip that this driver knows\n", stderr);
	std::abort();
}

} // namespace

extern "C" __attribute__((visibility("default"))) void* vk_icdGetInstanceProcAddr(void*, const char*) {
	misbehave();
	return nullptr; // not a driver
}
extern "C" __attribute__((visibility("default"))) int vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t*) {
	return 0; // any version
}
