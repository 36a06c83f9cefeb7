// Tries the installed Vulkan drivers in helper processes.
//
// A helper writes "begin" to its standard output when it starts, and "done" with its process id when the devices are
// listed. Only these count, because a driver may exit, or fork and let the copy continue. A crashing driver often
// writes the reason to stderr. Neither pipe is read until its end, because a process that a driver left behind may hold
// it open.
#include "backends/vulkan/probe.h"
#include "backends/driver_memory.h"
#include "backends/vulkan/icd_files.h"
#include "engine/core/log.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <mutex>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

extern char** environ;

namespace kvrun::vk {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kQuiet{3000}; // time before the log names the drivers that are still running
constexpr std::chrono::milliseconds kReap{200};   // time for a killed process to end
constexpr std::chrono::milliseconds kPause{2};    // between two checks: the end of a process has no descriptor
constexpr size_t kMostText = 8192;                // bytes kept of a driver's output

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

std::string last_line(const std::string& text) {
	const size_t end = text.find_last_not_of("\r\n \t");
	if (end == text.npos) return "";
	const size_t begin = text.find_last_of("\r\n", end);
	return text.substr(begin == text.npos ? 0 : begin + 1, end - (begin == text.npos ? 0 : begin + 1) + 1);
}

// The environment of a helper that loads this driver only.
std::vector<std::string> environment_for(const std::string& icd) {
	std::vector<std::string> out;
	for (char** e = environ; e && *e; ++e) {
		const std::string_view v = *e;
		if (!v.starts_with("VK_DRIVER_FILES=") && !v.starts_with("VK_ICD_FILENAMES=")) out.emplace_back(v);
	}
	out.push_back("VK_DRIVER_FILES=" + icd);
	out.push_back("VK_ICD_FILENAMES=" + icd); // the variable's name for older loaders
	return out;
}

class Trial { // one driver in one helper
 public:
	explicit Trial(const IcdFile& icd) : icd_(icd) {}
	Trial(Trial&&) = delete;
	~Trial() { stop(); }

	const IcdFile& icd() const { return icd_; }
	const std::string& why() const { return why_; } // empty: no problem found
	bool running() const { return pid_ > 0; }

	bool late() const { return late_; }

	void start(const std::string& helper);
	void look(); // reads its output, and checks whether it has ended
	void give_up(double seconds) {
		if (!running()) return;
		look();
		if (running() && begun()) {
			late_ = true;
			why_ = fmt::format("did not list its devices within {} s", seconds);
		}
		stop();
	}

 private:
	bool begun() const { return reported_.starts_with("begin\n"); }
	bool done() const { return reported_ == fmt::format("begin\ndone {}\n", pid_); }
	void ended(const siginfo_t&);
	void stop();

	const IcdFile& icd_;
	pid_t pid_ = 0; // also the id of its process group
	PipeEnds report_, said_;
	std::string reported_, text_, why_;
	bool late_ = false; // refused only for taking too long: it may be faster the next time
};

void Trial::start(const std::string& helper) {
	if (!report_.open() || !said_.open()) return; // a probe that cannot run does not refuse a device
	std::vector<std::string> env = environment_for(icd_.file);
	std::vector<char*> envp;
	for (std::string& e : env) envp.push_back(e.data());
	envp.push_back(nullptr);
	std::string name = helper;
	char* argv[] = {name.data(), nullptr};

	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	if (posix_spawn_file_actions_init(&files) != 0) return;
	if (posix_spawnattr_init(&attributes) != 0) {
		posix_spawn_file_actions_destroy(&files);
		return;
	}
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, report_.write, 1);
	posix_spawn_file_actions_adddup2(&files, said_.write, 2);
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
	const int error = posix_spawn(&pid, helper.c_str(), &files, &attributes, argv, envp.data());
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	if (error == 0)
		pid_ = pid;
	else
		log_at(1, "# {}: {}: drivers are not tried before they are used", helper, std::strerror(error));
	PipeEnds::close_end(report_.write), PipeEnds::close_end(said_.write);
}

void Trial::look() {
	if (!running()) return;
	siginfo_t info{};
	const int r =
	    ::waitid(P_PID, id_t(pid_), &info, WEXITED | WNOHANG | WNOWAIT); // before the pipes: the rest is there
	drain(report_.read, reported_);
	drain(said_.read, text_);
	if (done()) return stop();
	if ((r == 0 && info.si_pid == pid_) || (r != 0 && errno == ECHILD)) {
		ended(info);
		stop();
	}
}

void Trial::ended(const siginfo_t& info) {
	if (!begun()) { // the helper itself does not run here, which is not the driver's fault
		log_at(1, "# the helper that tries drivers ended before it began: {}", one_line(last_line(text_)));
		return;
	}
	const std::string said = one_line(last_line(text_));
	if (info.si_pid == pid_ && (info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED)) {
		const char* name = sigabbrev_np(info.si_status);
		why_ = fmt::format("crashed with signal {} (SIG{})", info.si_status, name ? name : "?");
	} else if (info.si_pid == pid_) {
		why_ = fmt::format("ended its process with exit code {} instead of listing its devices", info.si_status);
	} else { // other code in this process has waited for it
		why_ = "ended its process instead of listing its devices";
	}
	if (!said.empty()) why_ += ": " + said;
}

// Ends the helper and the processes that its driver started. It is not reaped yet, so that the ids are still theirs.
void Trial::stop() {
	if (!running()) return;
	::kill(-pid_, SIGKILL);
	::kill(pid_, SIGKILL);
	const Clock::time_point end = Clock::now() + kReap;
	int status = 0;
	// a process inside the kernel may outlive the signal; this one must not wait for it
	while (::waitpid(pid_, &status, WNOHANG) == 0 && Clock::now() < end) std::this_thread::sleep_for(kPause);
	pid_ = 0;
}

// Tries all drivers in parallel, each in its own helper.
std::vector<std::unique_ptr<Trial>> try_all(const std::vector<const IcdFile*>& drivers, const std::string& helper,
                                            double seconds) {
	std::vector<std::unique_ptr<Trial>> trials;
	for (const IcdFile* d : drivers) trials.push_back(std::make_unique<Trial>(*d));
	for (auto& t : trials) t->start(helper);
	const Clock::time_point start = Clock::now();
	const auto end = start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
	for (bool said = false;;) {
		bool running = false;
		for (auto& t : trials) t->look(), running |= t->running();
		const Clock::time_point now = Clock::now();
		if (!running || now >= end) break;
		if (!said && now >= start + kQuiet) {
			said = true;
			for (auto& t : trials)
				if (t->running())
					log_line(0, fmt::format("waiting for driver {}, {} s at most", t->icd().file, seconds));
		}
		std::this_thread::sleep_for(kPause);
	}
	for (auto& t : trials) t->give_up(seconds);
	return trials;
}

struct Memo { // results of this process
	std::mutex mutex;
	bool full = false;
	std::string key, key_after; // identify the drivers tried; after the loader was told to leave drivers out
	Drivers drivers;
};
Memo& memo() {
	static Memo m;
	return m;
}

std::string key_of(const BackendOptions& o) {
	return fmt::format("{} {}\n{}\n{}\n{}", o.probe, o.probe_seconds, o.cache_dir, bool(o.set_driver_files),
	                   driver_environment(true));
}

Drivers find_bad(const BackendOptions& o) {
	Drivers out;
	const std::vector<IcdFile> all = icd_files();
	DriverMemory known(o.probe.empty() ? "" : o.cache_dir);
	std::vector<const IcdFile*> good, untried;
	const auto refuse = [&](const IcdFile& icd, const std::string& why) { out.bad.push_back({icd.file, why}); };
	for (const IcdFile& icd : all) {
		const std::string* before = known.find(icd.file, driver_build(icd));
		if (!icd.problem.empty())
			refuse(icd, icd.problem);
		else if (before && !before->empty())
			refuse(icd, *before + " (remembered; `kvrun devices --retry` tries it again)");
		else if (o.probe.empty())
			good.push_back(&icd);
		else
			untried.push_back(&icd);
	}
	if (!untried.empty()) {
		for (const auto& t : try_all(untried, o.probe, o.probe_seconds))
			if (t->why().empty()) {
				good.push_back(&t->icd());
			} else {
				refuse(t->icd(), t->why());
				if (!t->late()) known.add(t->icd().file, driver_build(t->icd()), t->why());
			}
		known.save();
	}
	for (const IcdFile* icd : good) out.good += (out.good.empty() ? "" : ":") + icd->file;
	return out;
}

} // namespace

Drivers probe_drivers(const BackendOptions& o) {
	Memo& m = memo();
	std::lock_guard lock(m.mutex);
	const std::string key = key_of(o);
	if (m.full && (key == m.key || key == m.key_after)) return m.drivers;
	m.full = false;
	m.drivers = find_bad(o);
	// a path that does not exist, so that the loader does not use its own search
	if (!m.drivers.bad.empty() && o.set_driver_files)
		o.set_driver_files(m.drivers.good.empty() ? "/nonexistent/no-driver-is-good.json" : m.drivers.good);
	m.key = key, m.key_after = key_of(o);
	m.full = true;
	return m.drivers;
}

} // namespace kvrun::vk
