// CPU time of the calling thread: unlike wall-clock time, it does not depend on the load of the machine. Windows counts
// it in steps of 15 ms, longer than what is measured, so that it is wall-clock time there.
#pragma once
#include <chrono>
#include <ctime>

namespace kvrun {

inline double cpu_seconds() {
#ifdef _WIN32
	return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
#else
	timespec t{};
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
#endif
}

} // namespace kvrun
