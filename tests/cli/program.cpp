// Runs the kvrun program in the ways that a shell or a terminal does, for tests.
#include "tests/cli/program.h"
#include "engine/core/error.h"
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvrun {
namespace {

struct Pipe {
	int read_end = -1, write_end = -1;
	Pipe() {
		int fds[2];
		if (pipe2(fds, O_CLOEXEC) != 0) fail(Code::Io, "pipe: {}", errno);
		read_end = fds[0], write_end = fds[1];
	}
	~Pipe() { close_read(), close_write(); }
	void close_read() {
		if (read_end >= 0) close(read_end);
		read_end = -1;
	}
	void close_write() {
		if (write_end >= 0) close(write_end);
		write_end = -1;
	}
};

// In the child after fork: sets up the streams, then runs the program. Only calls that are safe there.
[[noreturn]] void become_program(const RunSpec& spec, const std::vector<char*>& argv, const std::vector<char*>& env,
                                 int in, int out, int err) {
	const auto place = [](int from, int to) {
		if (from < 0)
			close(to);
		else
			dup2(from, to);
	};
	if (spec.terminal && !spec.input) { // keys that are signals reach the program
		setsid();
		ioctl(out, TIOCSCTTY, 0);
		in = out;
	}
	place(in, 0);
	if (spec.out == Out::Full) out = open("/dev/full", O_WRONLY);
	place(spec.out == Out::Closed ? -1 : out, 1);
	place(err, 2);
	execve(argv[0], argv.data(), env.data());
	_exit(127);
}

std::vector<std::string> environment(const RunSpec& spec) {
	std::vector<std::string> out;
	const auto dropped = [&](const std::string& entry) {
		for (const char* name : {"TERM=", "NO_COLOR=", "KVRUN_"}) // none of the caller's settings
			if (entry.rfind(name, 0) == 0) return true;
		return false;
	};
	for (char** e = environ; *e; ++e)
		if (!dropped(*e)) out.push_back(*e);
	if (spec.terminal) out.push_back("TERM=" + spec.terminal->term);
	for (const auto& [name, value] : spec.env) out.push_back(name + "=" + value);
	return out;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
	std::vector<char*> out;
	for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
	out.push_back(nullptr);
	return out;
}

// Feeds stdin and collects output until every stream is closed.
void pump(const RunSpec& spec, int pid, int in, int out, int err, Ran& ran) {
	const auto start = std::chrono::steady_clock::now();
	const auto ms = [&] {
		return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
	};
	bool signalled = spec.signal == 0;
	std::string_view rest = spec.input ? std::string_view(*spec.input) : std::string_view();
	if (in >= 0) fcntl(in, F_SETFL, O_NONBLOCK);
	while (out >= 0 || err >= 0) {
		if (!signalled && ms() >= spec.signal_after_ms) signalled = kill(pid, spec.signal) == 0;
		if (ms() > spec.timeout_s * 1000) {
			kill(pid, SIGKILL);
			ran.err += "[test: killed after timeout]";
			return;
		}
		pollfd fds[3] = {{in, POLLOUT, 0}, {out, POLLIN, 0}, {err, POLLIN, 0}};
		if (poll(fds, 3, signalled ? 200 : 1) < 0 && errno != EINTR) return;
		if (in >= 0 && fds[0].revents) {
			const ssize_t n = rest.empty() ? -1 : write(in, rest.data(), rest.size());
			if (n > 0) rest.remove_prefix(size_t(n));
			if (rest.empty() || (n < 0 && errno != EAGAIN)) close(in), in = -1;
		}
		const auto take = [&](int& fd, std::string& to, short events) {
			if (fd < 0 || !events) return;
			char piece[4096];
			const ssize_t n = read(fd, piece, sizeof piece);
			if (n > 0)
				to.append(piece, size_t(n));
			else if (n == 0 || errno != EAGAIN)
				close(fd), fd = -1; // EIO: no process has the terminal open
			if (n > 0 && spec.watch) spec.watch(pid, fd, to);
			if (n > 0 && spec.out == Out::Gone && &to == &ran.out && fd >= 0) close(fd), fd = -1;
		};
		take(out, ran.out, fds[1].revents);
		take(err, ran.err, fds[2].revents);
	}
	if (in >= 0) close(in);
}

} // namespace

bool windows_program() { return std::getenv("KVRUN_TEST_WINDOWS") != nullptr; }
bool needs_posix(const std::string& what) {
	if (windows_program()) skip("not for a Windows program: " + what);
	return windows_program();
}

bool no_terminal() {
	if (needs_posix("terminals")) return true;
	int master = -1, slave = -1;
	if (openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) {
		skip(fmt::format("no terminal (openpty: {})", std::strerror(errno)));
		return true;
	}
	close(master), close(slave);
	return false;
}

Ran run_program(const RunSpec& spec) {
	const char* program = std::getenv("KVRUN_PROGRAM");
	if (!program) fail(Code::Invalid, "KVRUN_PROGRAM is not set; run the test by ctest");
	std::signal(SIGPIPE, SIG_IGN);
	std::vector<std::string> args = spec.args, env = environment(spec);
	args.insert(args.begin(), program);
	const std::vector<char*> argv = pointers(args), envp = pointers(env);

	Ran ran;
	Pipe in, out, err;
	int master = -1, slave = -1;
	if (spec.terminal) {
		winsize size{24, spec.terminal->columns, 0, 0};
		if (openpty(&master, &slave, nullptr, nullptr, &size) != 0) fail(Code::Io, "openpty: {}", errno);
		fcntl(slave, F_SETFD, FD_CLOEXEC);
		fcntl(master, F_SETFD, FD_CLOEXEC);
	}
	const pid_t pid = fork();
	if (pid < 0) fail(Code::Io, "fork: {}", errno);
	if (pid == 0) {
		std::signal(SIGPIPE, SIG_DFL);
		become_program(spec, argv, envp, spec.input ? in.read_end : -1, spec.terminal ? slave : out.write_end,
		               spec.terminal ? slave : err.write_end);
	}
	in.close_read(), out.close_write(), err.close_write();
	if (slave >= 0) close(slave);
	const auto take = [](int& fd) { return std::exchange(fd, -1); };
	if (spec.terminal) out.close_read();
	pump(spec, pid, take(in.write_end), spec.terminal ? master : take(out.read_end), take(err.read_end), ran);
	int status = 0;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
	ran.killed = WIFSIGNALED(status);
	ran.code = ran.killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	return ran;
}

} // namespace kvrun
