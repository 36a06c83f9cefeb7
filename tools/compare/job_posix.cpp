// Jobs of a comparison, each in a child of this process.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "tools/commands.h"
#include "tools/compare/job_process.h"
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace kvrun::comparison {
namespace {

[[noreturn]] void child(const Job& u, const std::string& part, const std::string& log) {
	const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd >= 0) ::dup2(fd, 2);
	int code = 0;
	try {
		write_part(part, u);
	} catch (const Exit& e) { code = e.code ? e.code : 1; } catch (const std::exception& e) {
		const std::string line = fmt::format("error: {}\n", one_line(e.what(), 4000));
		code = ::write(2, line.data(), line.size()) < 0 ? 2 : 1;
	}
	std::fflush(nullptr);
	::_exit(code); // must not close the parent's streams and drivers
}

} // namespace

std::string only_job() { return {}; }

// A second Ctrl-C ends this program and, by the terminal, the child.
std::string run_apart(const Job& u, const std::string& part, const std::string& log,
                      const std::function<void()>& tick) {
	const pid_t pid = ::fork();
	if (pid < 0) fail(Code::Internal, "no process can be made: {}", std::strerror(errno));
	if (pid == 0) child(u, part, log);
	int status = 0;
	for (;;) {
		const pid_t got = ::waitpid(pid, &status, WNOHANG);
		if (got == pid) break;
		if (got < 0 && errno != EINTR) fail(Code::Internal, "waitpid: {}", std::strerror(errno));
		tick();
		std::this_thread::sleep_for(std::chrono::milliseconds(50));
	}
	if (WIFSIGNALED(status)) return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
	return WEXITSTATUS(status) ? fmt::format("exit code {}", WEXITSTATUS(status)) : "";
}

} // namespace kvrun::comparison
