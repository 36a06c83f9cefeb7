// An environment variable set for a scope.
#pragma once
#include <cstdlib>
#include <string>

namespace kvrun {

class ScopedEnv {
 public:
	ScopedEnv(const char* name, const std::string& value) : name_(name) { // empty: unset
		if (const char* old = std::getenv(name)) old_ = old, had_ = true;
		if (value.empty())
			unsetenv(name);
		else
			setenv(name, value.c_str(), 1);
	}
	~ScopedEnv() {
		if (had_)
			setenv(name_, old_.c_str(), 1);
		else
			unsetenv(name_);
	}
	ScopedEnv(const ScopedEnv&) = delete;

 private:
	const char* name_;
	std::string old_;
	bool had_ = false;
};

// The caps that the test program runs under, and `more` of them.
inline std::string test_caps_and(const std::string& more) {
	const char* caps = std::getenv("KVRUN_TEST_CAPS");
	const std::string now = caps ? caps : "";
	return now.empty() || more.empty() ? now + more : now + "," + more;
}

} // namespace kvrun
