// Levelled log.
#include "engine/core/error.h"
#include "engine/core/log_scope.h"
#include <atomic>
#include <cstdio>

namespace kvrun {
namespace {

Log process;
std::atomic<int> process_level = -1; // process.most_level, readable without the mutex
thread_local Log* own = nullptr;     // log of the innermost scope
thread_local bool in_sink = false;   // lines logged inside a sink are dropped

constexpr size_t kMaxWarnings = 1000; // distinct warnings; limited, because they may quote text of files

Log& current() { return own ? *own : process; }

} // namespace

void set_log_sink(LogSink s, int most) {
	if (in_sink) fail(Code::Invalid, "the log sink cannot be changed by the sink itself");
	std::lock_guard lock(process.mutex);
	process_level = process.most_level = s ? most : -1;
	process.sink = std::move(s);
}

LogScope::LogScope(Log& log) : before_(own) {
	if (log.sink) own = &log;
}
LogScope::~LogScope() { own = before_; }

void stderr_sink(int, std::string_view line) {
	std::fwrite(line.data(), 1, line.size(), stderr);
	std::fputc('\n', stderr);
}

bool logs_at(int level) { return level <= (own ? own->most_level : process_level.load()); }

void log_line(int level, std::string_view line) {
	if (in_sink) return;
	Log& log = current();
	std::lock_guard lock(log.mutex);
	in_sink = true;
	if (log.sink && level <= log.most_level) log.sink(level, line);
	in_sink = false;
}

void warn_once(std::string_view line) {
	{
		if (in_sink) return;
		Log& log = current();
		std::lock_guard lock(log.mutex);
		if (log.warned_of.size() >= kMaxWarnings || !log.warned_of.emplace(line).second) return;
	}
	log_line(0, fmt::format("warning: {}", line));
}

} // namespace kvrun
