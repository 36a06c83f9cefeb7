// Levelled log.
#include "engine/core/log.h"
#include "engine/core/error.h"
#include <atomic>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace kvrun {
namespace {
std::mutex mutex;
LogSink sink;
std::atomic<int> most_level = -1;  // -1: no sink
thread_local bool in_sink = false; // a sink that calls what logs loses those lines
} // namespace

void set_log_sink(LogSink s, int most) {
	if (in_sink) fail(Code::Invalid, "the log sink cannot be changed by the sink itself");
	std::lock_guard lock(mutex);
	most_level = s ? most : -1;
	sink = std::move(s);
}

void stderr_sink(int, std::string_view line) {
	std::fwrite(line.data(), 1, line.size(), stderr);
	std::fputc('\n', stderr);
}

bool logs_at(int level) { return level <= most_level; }

void log_line(int level, std::string_view line) {
	if (in_sink) return;
	std::lock_guard lock(mutex);
	in_sink = true;
	if (sink && level <= most_level) sink(level, line);
	in_sink = false;
}

constexpr size_t kMaxWarnings = 1000; // distinct ones; texts that hold a file's words must not grow without end

void warn_once(std::string_view line) {
	static std::set<std::string, std::less<>> seen;
	{
		if (in_sink) return;
		std::lock_guard lock(mutex);
		if (seen.size() >= kMaxWarnings || !seen.emplace(line).second) return;
	}
	log_line(0, fmt::format("warning: {}", line));
}

} // namespace kvrun
