// Processes of POSIX systems.
#include "engine/core/system/process.h"
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char** environ;

namespace kvrun::sys {

const char kListSeparator = ':';

int process_id() { return ::getpid(); }
bool has_ended(int process) { return ::kill(process, 0) != 0 && errno == ESRCH; }
std::string program_path() {
	std::error_code ec;
	return std::filesystem::read_symlink("/proc/self/exe", ec).string();
}

void prepare_program() {
	for (int fd = 0; fd <= 2; ++fd) {
		if (::fcntl(fd, F_GETFD) != -1) continue;
		// opened in the wrong direction on purpose: using a closed stream stays an error, but stderr is dropped
		// silently
		const int got = ::open("/dev/null", fd == 1 ? O_RDONLY : O_WRONLY);
		if (got >= 0 && got != fd) ::close(got);
	}
	std::signal(SIGPIPE, SIG_IGN);
	std::signal(SIGXFSZ, SIG_IGN); // exceeding the file size limit makes the write fail instead
}
std::vector<std::string> arguments(int argc, char** argv) { return {argv, argv + argc}; }

std::vector<std::string> environment() {
	std::vector<std::string> out;
	for (char** e = environ; e && *e; ++e) out.emplace_back(*e);
	return out;
}
void set_variable(const std::string& name, const std::string& value) { ::setenv(name.c_str(), value.c_str(), 1); }

int run_shell(const std::string& command, std::string& out) {
	std::FILE* p = ::popen((command + " 2>/dev/null").c_str(), "re");
	if (!p) return -1;
	char buffer[4096];
	while (const size_t n = std::fread(buffer, 1, sizeof buffer, p)) out.append(buffer, n);
	const int status = ::pclose(p);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
std::string shell_word(const std::string& s) {
	std::string out = "'";
	for (const char c : s) out += c == '\'' ? "'\\''" : std::string(1, c);
	return out + "'";
}

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kReap{200}; // for what was killed to end
constexpr std::chrono::milliseconds kPause{2};  // between two checks: the end of a process has no descriptor
constexpr size_t kMostText = 8192;              // bytes kept of what a helper says

struct PipeEnds {
	int read = -1, write = -1; // never the number of a standard stream, which embedders may have closed
	PipeEnds() = default;
	PipeEnds(const PipeEnds&) = delete;
	~PipeEnds() { close_end(read), close_end(write); }
	static void close_end(int& fd) {
		if (fd >= 0) ::close(fd);
		fd = -1;
	}
	bool open() {
		int fds[2];
		if (::pipe2(fds, O_CLOEXEC) != 0) return false;
		read = ::fcntl(fds[0], F_DUPFD_CLOEXEC, 3);
		write = ::fcntl(fds[1], F_DUPFD_CLOEXEC, 3);
		::close(fds[0]), ::close(fds[1]);
		return read >= 0 && write >= 0 && ::fcntl(read, F_SETFL, O_NONBLOCK) == 0;
	}
};

// Appends what can be read now, and keeps the end of it.
void drain(int fd, std::string& to) {
	char buffer[2048];
	for (int i = 0; i < 64; ++i) { // bounded, so that a process that writes faster than this reads cannot block it
		const ssize_t n = ::read(fd, buffer, sizeof buffer);
		if (n <= 0) return;
		to.append(buffer, size_t(n));
		if (to.size() > kMostText) to.erase(0, to.size() - kMostText / 2);
	}
}

} // namespace

struct HelperProcess::Impl {
	pid_t pid = 0; // also the id of its process group
	PipeEnds out, err;
	siginfo_t info{};
};

HelperProcess::HelperProcess() : impl_(std::make_unique<Impl>()) {}
HelperProcess::~HelperProcess() { stop(); }
bool HelperProcess::running() const { return impl_->pid > 0; }
int HelperProcess::id() const { return impl_->pid; }

std::string HelperProcess::start(const std::string& program, const std::vector<std::string>& environment) {
	if (!impl_->out.open() || !impl_->err.open()) return {};
	std::vector<std::string> env = environment;
	std::vector<char*> envp;
	for (std::string& e : env) envp.push_back(e.data());
	envp.push_back(nullptr);
	std::string name = program;
	char* argv[] = {name.data(), nullptr};

	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	if (posix_spawn_file_actions_init(&files) != 0) return {};
	if (posix_spawnattr_init(&attributes) != 0) {
		posix_spawn_file_actions_destroy(&files);
		return {};
	}
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, impl_->out.write, 1);
	posix_spawn_file_actions_adddup2(&files, impl_->err.write, 2);
#if __GLIBC_PREREQ(2, 34)
	posix_spawn_file_actions_addclosefrom_np(&files, 3); // descriptors that an embedder forgot to mark
#endif
	sigset_t none, all;
	sigemptyset(&none), sigfillset(&all);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawnattr_setpgroup(&attributes, 0);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	pid_t pid = 0;
	const int error = posix_spawn(&pid, program.c_str(), &files, &attributes, argv, envp.data());
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	if (error == 0) impl_->pid = pid;
	PipeEnds::close_end(impl_->out.write), PipeEnds::close_end(impl_->err.write);
	return error == 0 ? "" : std::strerror(error);
}

bool HelperProcess::look(std::string& out, std::string& err) {
	impl_->info = {};
	const int r = ::waitid(P_PID, id_t(impl_->pid), &impl_->info,
	                       WEXITED | WNOHANG | WNOWAIT); // before the pipes: their rest is there
	const int error = errno;
	drain(impl_->out.read, out);
	drain(impl_->err.read, err);
	return (r == 0 && impl_->info.si_pid == impl_->pid) || (r != 0 && error == ECHILD);
}

HelperProcess::End HelperProcess::end() const {
	const siginfo_t& info = impl_->info;
	if (info.si_pid != impl_->pid) return {};
	if (info.si_code != CLD_KILLED && info.si_code != CLD_DUMPED) return {true, "", info.si_status};
	const char* name = sigabbrev_np(info.si_status);
	return {true, "signal " + std::to_string(info.si_status) + " (SIG" + (name ? name : "?") + ")", 0};
}

// Not reaped before it is killed, so that the id is still its own and its group's.
void HelperProcess::stop() {
	if (!running()) return;
	::kill(-impl_->pid, SIGKILL);
	::kill(impl_->pid, SIGKILL);
	const Clock::time_point end = Clock::now() + kReap;
	int status = 0;
	// a process inside the kernel may outlive the signal; this one must not wait for it
	while (::waitpid(impl_->pid, &status, WNOHANG) == 0 && Clock::now() < end) std::this_thread::sleep_for(kPause);
	impl_->pid = 0;
}

int become_helper(unsigned longest_seconds) {
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(longest_seconds);
	const rlimit none{0, 0};
	setrlimit(RLIMIT_CORE, &none);
	const int report = fcntl(1, F_DUPFD_CLOEXEC, 10);
	if (report >= 0) dup2(2, 1);
	return report;
}

} // namespace kvrun::sys
