// Levelled log. Level 0: warnings only, 1: summary, 2: per step, 3: every op before it runs. Lines go to a sink;
// without one they are dropped, because a library must not write to the application's streams.
#pragma once
#include <fmt/format.h>
#include <functional>
#include <string_view>

namespace kvrun {

// line: without a newline. Called by one thread at a time, on the thread that logs; it must neither throw nor log.
using LogSink = std::function<void(int level, std::string_view line)>;
void set_log_sink(LogSink, int most_level); // empty: no log
void stderr_sink(int level, std::string_view line);

bool logs_at(int level);
void log_line(int level, std::string_view line);
void warn_once(std::string_view line); // "warning: ..." once per distinct text and process

template <class... A> void log_at(int level, fmt::format_string<A...> f, A&&... a) {
	if (logs_at(level)) log_line(level, fmt::format(f, std::forward<A>(a)...));
}

} // namespace kvrun
