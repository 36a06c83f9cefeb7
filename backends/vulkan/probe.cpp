// Tries the installed Vulkan drivers in a child process, so that one that crashes is a refusal, not the end.
#include "backends/vulkan/probe.h"
#include "backends/vulkan/device.h"
#include "backends/vulkan/open_vulkan.h"
#include "engine/core/log.h"
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace kvrun::vk {
namespace {

namespace fs = std::filesystem;
constexpr int kTimeoutMs = 30000; // a driver that needs longer to list its devices hangs

[[noreturn]] void child(int out, const char* icd) {
	const rlimit none{0, 0};
	setrlimit(RLIMIT_CORE, &none);
	const int null = open("/dev/null", O_RDWR);
	if (null >= 0) {
		dup2(null, 0);
		dup2(null, 1);
	}
	dup2(out, 2); // a crashing driver often says why
	for (int s : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(s, SIG_DFL);
	if (icd) {
		setenv("VK_DRIVER_FILES", icd, 1);
		setenv("VK_ICD_FILENAMES", icd, 1);
	}
	try {
		Instance instance("");
		candidates(instance, {});
	} catch (...) { // no driver, no device: the parent finds that out for itself
	}
	_exit(0);
}

std::string last_line(const std::string& text) {
	const size_t end = text.find_last_not_of("\r\n \t");
	if (end == text.npos) return "";
	const size_t begin = text.find_last_of("\r\n", end);
	return text.substr(begin == text.npos ? 0 : begin + 1, end - (begin == text.npos ? 0 : begin + 1) + 1);
}

// Empty: the child ended as it should.
std::string try_child(const char* icd) {
	int pipes[2];
	if (pipe2(pipes, O_CLOEXEC) != 0) return ""; // no probe is no reason to refuse a device
	const pid_t pid = fork();
	if (pid < 0) {
		close(pipes[0]);
		close(pipes[1]);
		return "";
	}
	if (pid == 0) child(pipes[1], icd);
	close(pipes[1]);
	std::string said;
	bool hung = false;
	for (char buffer[512];;) { // until the child's last write end is closed, which is its end
		pollfd p{pipes[0], POLLIN, 0};
		const int ready = poll(&p, 1, kTimeoutMs);
		if (ready < 0 && errno == EINTR) continue;
		if (ready == 0) {
			hung = true;
			kill(pid, SIGKILL);
			break;
		}
		const ssize_t n = read(pipes[0], buffer, sizeof buffer);
		if (n < 0 && errno == EINTR) continue;
		if (n <= 0) break;
		said.append(buffer, size_t(n));
		if (said.size() > 16384) said.erase(0, said.size() - 4096);
	}
	close(pipes[0]);
	int status = 0;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
	if (hung) return fmt::format("did not list its devices within {} s", kTimeoutMs / 1000);
	if (!WIFSIGNALED(status)) return "";
	const std::string reason = last_line(said);
	return fmt::format("crashed with signal {} (SIG{}){}{}", WTERMSIG(status), sigabbrev_np(WTERMSIG(status)),
	                   reason.empty() ? "" : ": ", reason);
}

void add_files(std::vector<std::string>& out, const fs::path& p) {
	std::error_code ec;
	if (!fs::is_directory(p, ec)) {
		if (fs::exists(p, ec)) out.push_back(p.string());
		return;
	}
	std::vector<std::string> found;
	for (const auto& e : fs::directory_iterator(p, ec))
		if (e.path().extension() == ".json") found.push_back(e.path().string());
	std::sort(found.begin(), found.end());
	for (std::string& f : found)
		if (std::find(out.begin(), out.end(), f) == out.end()) out.push_back(std::move(f));
}
void add_list(std::vector<std::string>& out, const char* list, const char* below) {
	std::string all = list ? list : "";
	for (size_t at = 0; at < all.size();) {
		const size_t end = std::min(all.find(':', at), all.size());
		if (end > at)
			add_files(out, *below ? fs::path(all.substr(at, end - at)) / below : fs::path(all.substr(at, end - at)));
		at = end + 1;
	}
}

// Where the loader looks for drivers.
std::vector<std::string> icd_files() {
	std::vector<std::string> out;
	for (const char* name : {"VK_DRIVER_FILES", "VK_ICD_FILENAMES"})
		if (const char* v = std::getenv(name); v && *v) return add_list(out, v, ""), out;
	const char* home = std::getenv("HOME");
	auto value = [](const char* name, std::string fallback) {
		const char* v = std::getenv(name);
		return v && *v ? std::string(v) : fallback;
	};
	const std::string h = home ? home : "";
	add_list(out, std::getenv("VK_ADD_DRIVER_FILES"), "");
	add_list(out, value("XDG_CONFIG_HOME", h + "/.config").c_str(), "vulkan/icd.d");
	add_list(out, value("XDG_CONFIG_DIRS", "/etc/xdg").c_str(), "vulkan/icd.d");
	add_list(out, "/etc:/usr/local/etc", "vulkan/icd.d");
	add_list(out, value("XDG_DATA_HOME", h + "/.local/share").c_str(), "vulkan/icd.d");
	add_list(out, value("XDG_DATA_DIRS", "/usr/local/share:/usr/share").c_str(), "vulkan/icd.d");
	return out;
}

} // namespace

std::string find_icd(const std::string& prefix) {
	for (const std::string& f : icd_files())
		if (fs::path(f).filename().string().starts_with(prefix)) return f;
	return "";
}

namespace {

std::string environment() {
	std::string all;
	for (char** e = environ; e && *e; ++e) all.append(*e).push_back('\n');
	return all;
}

} // namespace

std::vector<BadDriver> probe_drivers() {
	static std::mutex mutex;
	static std::string tried; // environment of the last probe
	static std::vector<BadDriver> bad;
	std::lock_guard lock(mutex);
	if (Instance::alive() > 0 || environment() == tried) return bad;
	bad.clear();
	if (const std::string why = try_child(nullptr); !why.empty()) {
		std::string good;
		for (const std::string& file : icd_files()) {
			const std::string one = try_child(file.c_str());
			if (one.empty())
				good += (good.empty() ? "" : ":") + file;
			else
				bad.push_back({file, one});
		}
		if (bad.empty()) bad.push_back({"a Vulkan driver", why}); // alone each of them works
		// a path that does not exist: the loader must not fall back to its own search
		if (good.empty() || bad.front().file == "a Vulkan driver") good = "/nonexistent/every-driver-crashed.json";
		setenv("VK_DRIVER_FILES", good.c_str(), 1);
		setenv("VK_ICD_FILENAMES", good.c_str(), 1);
	}
	tried = environment();
	return bad;
}

} // namespace kvrun::vk
