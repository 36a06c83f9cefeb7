// The log of one engine.
#pragma once
#include "engine/core/log.h"
#include <mutex>
#include <set>
#include <string>

namespace kvrun {

// A log separate from that of the process.
struct Log {
	std::mutex mutex;
	LogSink sink;
	int most_level = -1;                          // -1: no lines
	std::set<std::string, std::less<>> warned_of; // warn_once()
};

// Until the scope ends, lines of this thread go to `log` instead of the process's log. A log without a sink has no
// effect.
class LogScope {
 public:
	explicit LogScope(Log& log);
	LogScope(const LogScope&) = delete;
	~LogScope();

 private:
	Log* before_;
};

} // namespace kvrun
