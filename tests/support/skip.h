// Parts of tests that cannot run here. They are printed, and a program that skipped some and had no failure exits with
// 77, which ctest reports as skipped.
#pragma once
#include <cstdio>
#include <string>

namespace kvrun {

constexpr int kSkippedExitCode = 77;

inline int& skipped_parts() {
	static int n = 0;
	return n;
}
inline void skip(const std::string& why) {
	++skipped_parts();
	std::fprintf(stderr, "skipped: %s\n", why.c_str());
}
inline int exit_code(int rc) { return rc == 0 && skipped_parts() > 0 ? kSkippedExitCode : rc; }

} // namespace kvrun
