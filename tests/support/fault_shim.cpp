// Preloaded into the program under test: makes it run out of memory, or ends it, at a chosen call.
//
// KVRUN_SHIM_NEW=N      operator new number N (from 1) and all after it fail; -N: only number N
// KVRUN_SHIM_MALLOC=N   the same for malloc, calloc and realloc of every library, from main() on, because CUDA's
//                       runtime does not survive a failure before
// KVRUN_SHIM_KILL=WORD  SIGKILL while a file whose name contains "pipelines-" is saved: `write`, with half of the bytes
//                       in the file, or `rename`, before it has its name
// KVRUN_SHIM_CLOCK=S    the wall clock jumps by S seconds each time it is read
// KVRUN_SHIM_COUNT=FILE at exit, the number of calls counted by KVRUN_SHIM_NEW (or _MALLOC) is written to this file
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <new>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* __libc_realloc(void*, size_t);

namespace {

struct Countdown {
	const char* variable;
	std::atomic<long> at{LONG_MIN}; // LONG_MIN: not read yet
	std::atomic<long> calls{0};

	bool fails() {
		long n = at.load(std::memory_order_relaxed);
		if (n == LONG_MIN) {
			const char* text = std::getenv(variable);
			at = n = text ? std::strtol(text, nullptr, 10) : 0;
		}
		const long call = ++calls;
		return n != 0 && (n > 0 ? call >= n : call == -n);
	}
};
Countdown news{"KVRUN_SHIM_NEW"}, mallocs{"KVRUN_SHIM_MALLOC"};

__attribute__((destructor)) void write_count() {
	const char* file = std::getenv("KVRUN_SHIM_COUNT");
	if (!file) return;
	char text[64];
	const int n = std::snprintf(text, sizeof text, "%ld %ld\n", news.calls.load(), mallocs.calls.load());
	if (std::FILE* f = std::fopen(file, "w")) {
		std::fwrite(text, 1, size_t(n), f);
		std::fclose(f);
	}
}

void* allocate(size_t bytes) {
	if (news.fails()) return nullptr;
	return __libc_malloc(bytes ? bytes : 1);
}
void* allocate_or_throw(size_t bytes) {
	if (void* p = allocate(bytes)) return p;
	throw std::bad_alloc();
}

bool dies_in(const char* call) {
	const char* word = std::getenv("KVRUN_SHIM_KILL");
	return word && !std::strcmp(word, call);
}

} // namespace

// ---- C++

#define VISIBLE __attribute__((visibility("default")))
VISIBLE void* operator new(size_t n) { return allocate_or_throw(n); }
VISIBLE void* operator new[](size_t n) { return allocate_or_throw(n); }
VISIBLE void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
VISIBLE void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n); }
VISIBLE void operator delete(void* p) noexcept { std::free(p); }
VISIBLE void operator delete[](void* p) noexcept { std::free(p); }
VISIBLE void operator delete(void* p, size_t) noexcept { std::free(p); }
VISIBLE void operator delete[](void* p, size_t) noexcept { std::free(p); }

// ---- C

namespace {

bool in_main = false;
int (*real_main)(int, char**, char**) = nullptr;
int counted_main(int argc, char** argv, char** env) {
	in_main = true;
	return real_main(argc, argv, env);
}
bool malloc_fails() { return in_main && mallocs.fails(); }

} // namespace

extern "C" VISIBLE int __libc_start_main(int (*main)(int, char**, char**), int argc, char** argv, void (*init)(),
                                         void (*fini)(), void (*rtld_fini)(), void* stack) {
	real_main = main;
	const auto next = reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
	return next(counted_main, argc, argv, init, fini, rtld_fini, stack);
}
extern "C" VISIBLE void* malloc(size_t n) {
	if (!malloc_fails()) return __libc_malloc(n);
	errno = ENOMEM;
	return nullptr;
}
extern "C" VISIBLE void* calloc(size_t n, size_t size) {
	if (!malloc_fails()) return __libc_calloc(n, size);
	errno = ENOMEM;
	return nullptr;
}
extern "C" VISIBLE void* realloc(void* p, size_t n) {
	if (!malloc_fails()) return __libc_realloc(p, n);
	errno = ENOMEM;
	return nullptr;
}

// ---- time

namespace {
long jump() { // current error of the wall clock in seconds
	static std::atomic<long> off{0};
	const char* each = std::getenv("KVRUN_SHIM_CLOCK");
	return each ? off += std::strtol(each, nullptr, 10) : 0;
}
} // namespace
extern "C" VISIBLE int clock_gettime(clockid_t id, timespec* t) noexcept {
	const int r = int(syscall(SYS_clock_gettime, id, t));
	if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += jump();
	return r;
}
extern "C" VISIBLE int gettimeofday(timeval* t, void*) noexcept {
	timespec now{};
	clock_gettime(CLOCK_REALTIME, &now);
	*t = {now.tv_sec, now.tv_nsec / 1000};
	return 0;
}
extern "C" VISIBLE time_t time(time_t* out) noexcept {
	timespec now{};
	clock_gettime(CLOCK_REALTIME, &now);
	if (out) *out = now.tv_sec;
	return now.tv_sec;
}

// ---- files

extern "C" VISIBLE ssize_t write(int fd, const void* from, size_t n) {
	if (n >= 16 && dies_in("write")) {
		char link[64], name[PATH_MAX];
		std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
		const ssize_t length = readlink(link, name, sizeof name - 1);
		name[length > 0 ? length : 0] = 0;
		if (std::strstr(name, "pipelines-")) {
			syscall(SYS_write, fd, from, n / 2);
			kill(getpid(), SIGKILL);
		}
	}
	return syscall(SYS_write, fd, from, n);
}
extern "C" VISIBLE int rename(const char* from, const char* to) {
	if (dies_in("rename") && std::strstr(to, "pipelines-")) kill(getpid(), SIGKILL);
	return int(syscall(SYS_rename, from, to));
}
