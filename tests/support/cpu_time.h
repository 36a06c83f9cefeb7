// CPU time of the calling thread: unlike wall-clock time, it does not depend on the load of the machine.
#pragma once
#include <ctime>

namespace kvrun {

inline double cpu_seconds() {
	timespec t{};
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

} // namespace kvrun
