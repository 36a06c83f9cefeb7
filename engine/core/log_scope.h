// A log of an engine's own.
#pragma once
#include "engine/core/log.h"
#include <mutex>
#include <set>
#include <string>

namespace kvrun {

// A log of its own, beside that of the process.
struct Log {
	std::mutex mutex;
	LogSink sink;
	int most_level = -1;                          // -1: no lines
	std::set<std::string, std::less<>> warned_of; // warn_once()
};

// Lines of this thread go to `log` instead of to the process's, until the scope ends. A log without a sink changes
// nothing.
class LogScope {
 public:
	explicit LogScope(Log& log);
	LogScope(const LogScope&) = delete;
	~LogScope();

 private:
	Log* before_;
};

} // namespace kvrun
