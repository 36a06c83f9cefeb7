// Levelled log on stderr.
#include "engine/core/log.h"
#include "engine/core/env.h"
#include <cstdio>
#include <mutex>
#include <set>
#include <string>

namespace kvrun {
namespace {
std::mutex mutex;
int level = -1; // read from KVRUN_LOG on first use
} // namespace

int log_level() {
	if (level < 0) level = int(env_number(Env::Log, 0));
	return level;
}
void set_log_level(int l) { level = l; }

void log_line(std::string_view line) {
	std::lock_guard lock(mutex);
	std::fwrite(line.data(), 1, line.size(), stderr);
	std::fputc('\n', stderr);
}

constexpr size_t kMaxWarnings = 1000; // distinct ones; texts that hold a file's words must not grow without end

void warn_once(std::string_view line) {
	static std::set<std::string, std::less<>> seen;
	{
		std::lock_guard lock(mutex);
		if (seen.size() >= kMaxWarnings || !seen.emplace(line).second) return;
	}
	log_line(fmt::format("warning: {}", line));
}

} // namespace kvrun
