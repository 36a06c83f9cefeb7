// Levelled log on stderr. Level 0: warnings only, 1: summary, 2: per step, 3: every op before it runs (KVRUN_LOG).
#pragma once
#include <fmt/format.h>
#include <string_view>

namespace kvrun {

int log_level();
void set_log_level(int level);
void log_line(std::string_view line);  // one line to stderr, newline added
void warn_once(std::string_view line); // "warning: ..." once per distinct text and process

template <class... A> void log_at(int level, fmt::format_string<A...> f, A&&... a) {
	if (log_level() >= level) log_line(fmt::format(f, std::forward<A>(a)...));
}

} // namespace kvrun
