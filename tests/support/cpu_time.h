// CPU time of the calling thread: unlike the time on a clock it does not depend on what else the machine does.
#pragma once
#include <ctime>

namespace kvrun {

inline double cpu_seconds() {
	std::timespec t{};
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

} // namespace kvrun
