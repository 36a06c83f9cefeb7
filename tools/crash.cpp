// Last messages of the program on fatal errors.
#include "tools/crash.h"
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <execinfo.h>
#include <fcntl.h>
#include <iterator>
#include <new>
#include <span>
#include <string_view>
#include <ucontext.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVRUN_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define KVRUN_SANITIZED 1
#endif

namespace kvrun {
namespace {

constexpr char kOutOfMemory[] =
    "error: out of host memory; give a smaller -c, a --kv with fewer bits, or a smaller model\n";
constexpr char kUnexpected[] = "error: internal: an exception that nobody expected\n";
constexpr int kMostFrames = 48;
constexpr size_t kLongestName = 256;

// From here to the end of the namespace: only async-signal-safe calls, and no memory except the stack.

void put(std::string_view s) {
	while (!s.empty()) {
		const ssize_t n = write(STDERR_FILENO, s.data(), s.size());
		if (n <= 0) return;
		s.remove_prefix(size_t(n));
	}
}

struct Place { // the mapping that an address belongs to
	char file[kLongestName] = {};
	bool executable = false; // memory that code runs in
};

uint64_t hex(const char*& p) {
	uint64_t v = 0;
	for (;; ++p) {
		const int digit = *p >= '0' && *p <= '9' ? *p - '0' : *p >= 'a' && *p <= 'f' ? *p - 'a' + 10 : -1;
		if (digit < 0) return v;
		v = v << 4 | uint64_t(digit);
	}
}

// One line of /proc/self/maps: begin-end rwxp offset device inode  path
void read_line(const char* line, std::span<const uint64_t> addresses, std::span<Place> places) {
	const char* p = line;
	const uint64_t begin = hex(p);
	if (*p != '-') return;
	const uint64_t end = hex(++p);
	const char* const path = std::strchr(p, '/');
	for (size_t i = 0; i < addresses.size(); ++i) {
		if (addresses[i] < begin || addresses[i] >= end) continue;
		places[i].executable = p[3] == 'x';
		if (path) std::strncpy(places[i].file, path, kLongestName - 1);
	}
}

void find_places(std::span<const uint64_t> addresses, std::span<Place> places) {
	const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	if (fd < 0) return;
	char line[1024], piece[1024];
	size_t length = 0;
	for (ssize_t n; (n = read(fd, piece, sizeof piece)) > 0;)
		for (ssize_t i = 0; i < n; ++i) {
			if (piece[i] != '\n') {
				if (length + 1 < sizeof line) line[length++] = piece[i];
				continue;
			}
			line[length] = 0;
			read_line(line, addresses, places);
			length = 0;
		}
	close(fd);
}

std::string_view name_of(const Place& p) {
	const std::string_view file = p.file;
	return file.substr(file.find_last_of('/') + 1);
}

// Common libraries: the crash is blamed on their caller.
bool is_everybodys(std::string_view name) {
	for (const std::string_view common : {"libc.so", "libc-", "libpthread", "libm.so", "libm-", "libstdc++", "libgcc_s",
	                                      "ld-linux", "libvulkan.so", "libVkLayer"})
		if (name.starts_with(common)) return true;
	return false;
}

const char* signal_name(int signal) {
	switch (signal) {
	case SIGSEGV: return "SIGSEGV";
	case SIGBUS: return "SIGBUS";
	case SIGILL: return "SIGILL";
	case SIGFPE: return "SIGFPE";
	default: return "SIGABRT";
	}
}

char own_file[kLongestName]; // of this program

// Prints which library crashed and exits with 4; returns if the crash was in the program itself.
void blame(int signal, std::span<const uint64_t> addresses) {
	Place places[kMostFrames];
	find_places(addresses, std::span(places, addresses.size()));
	const Place *first = nullptr, *last = nullptr; // of the frames between the crash and this program
	bool generated = false;
	for (size_t i = 0; i < addresses.size(); ++i) {
		const Place& p = places[i];
		if (!std::strcmp(p.file, own_file)) break;
		if (!p.executable || (p.file[0] && is_everybodys(name_of(p)))) continue;
		generated |= !p.file[0] && !first; // no file: a driver's compiler made it
		if (!p.file[0]) continue;
		if (!first) first = &p;
		last = &p;
	}
	if (!first && !generated) return;
	put("error: crashed with "), put(signal_name(signal)), put(" inside ");
	put(generated ? "code that a driver generated" : first->file);
	if (first && (generated || name_of(*last) != name_of(*first))) put(", called by "), put(last->file);
	put("; update the driver, give it more memory, or choose another --device\n");
	_exit(4);
}

extern "C" void on_crash(int signal, siginfo_t*, void* context) {
	uint64_t addresses[kMostFrames];
	void* frames[kMostFrames];
	size_t n = 0;
#if defined(__x86_64__)
	const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
	addresses[n++] = uint64_t(registers[REG_RIP]);
	if (addresses[0] == 0) // a call through a null pointer: the return address is on top of the stack
		addresses[n++] = *reinterpret_cast<const uint64_t*>(registers[REG_RSP]);
#elif defined(__aarch64__)
	const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
	addresses[n++] = registers.pc;
	if (addresses[0] == 0) addresses[n++] = registers.regs[30]; // the return address is in the link register
#else
	(void)context;
#endif
	const int found = backtrace(frames, kMostFrames);
	// the handler's own frames come first: this function, and the one the kernel returns to
	int begin = 0;
	for (int i = 0; n && i < found; ++i)
		if (reinterpret_cast<uint64_t>(frames[i]) == addresses[0]) begin = i + 1;
	for (int i = begin ? begin : std::min(2, found); i < found && n < kMostFrames; ++i)
		addresses[n++] = reinterpret_cast<uint64_t>(frames[i]);
	blame(signal, std::span(addresses, n));
	put("error: internal: crashed with "), put(signal_name(signal)), put("\n");
	// the default action is restored (SA_RESETHAND): the same fault, or abort(), ends the program and may dump core
	if (signal == SIGABRT) raise(signal);
}

[[noreturn]] void on_terminate() {
	try {
		// no current exception: there was no memory for one
		if (const std::exception_ptr e = std::current_exception()) std::rethrow_exception(e);
	} catch (const std::bad_alloc&) {
	} catch (...) {
		put(kUnexpected);
		_exit(1);
	}
	say_out_of_memory();
	_exit(4);
}

// Runs before the constructors of static objects, which also allocate.
[[gnu::constructor(101)]] void install_terminate() { std::set_terminate(on_terminate); }

} // namespace

void say_out_of_memory() noexcept { put(kOutOfMemory); }

void install_last_words() {
#ifndef KVRUN_SANITIZED // the sanitizer's own handler prints more
	if (readlink("/proc/self/exe", own_file, sizeof own_file - 1) < 0) return;
	void* frame = nullptr;
	backtrace(&frame, 1);     // the first call loads a library, which a handler must not do
	static char stack[65536]; // separate stack, because a stack overflow is a possible crash
	const stack_t alternative{stack, 0, sizeof stack};
	sigaltstack(&alternative, nullptr);
	struct sigaction act = {};
	act.sa_sigaction = on_crash;
	act.sa_flags = SA_SIGINFO | SA_ONSTACK | int(SA_RESETHAND);
	for (const int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT}) sigaction(s, &act, nullptr);
#endif
}

} // namespace kvrun
