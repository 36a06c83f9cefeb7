// What POSIX systems, Linux first, say about the machine.
#include "engine/core/system/machine.h"
#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <poll.h>
#include <string_view>
#include <sys/utsname.h>
#include <unistd.h>

namespace kvrun::sys {
namespace {

// Value of the first line "key : value" or "key=value" of a file; empty if there is none. Throws std::bad_alloc, which
// streams otherwise take for an end of the file.
std::string line_of(const char* file, std::string_view key, char between) try {
	std::ifstream in(file);
	in.exceptions(std::ios::badbit);
	for (std::string line; std::getline(in, line);) {
		const size_t at = line.find(between);
		if (!line.starts_with(key) || at == line.npos) continue;
		const size_t from = line.find_first_not_of(" \t", at + 1);
		return from == line.npos ? "" : line.substr(from);
	}
	return {};
} catch (const std::ios::failure&) { // it cannot be read
	return {};
}
size_t kilobytes_of(const char* file, std::string_view key) { // lines read "MemTotal:  1234 kB"
	return size_t(std::strtoull(line_of(file, key, ':').c_str(), nullptr, 10)) * 1024;
}

std::string folder(const char* variable, const char* below_home) {
	if (const char* x = std::getenv(variable); x && *x == '/') return x;
	const std::string home = home_folder();
	return home.empty() ? home : home + below_home;
}

} // namespace

size_t memory_bytes() {
	const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
	return pages > 0 && size > 0 ? size_t(pages) * size_t(size) : 0;
}
size_t memory_free_bytes() {
	const size_t bytes = kilobytes_of("/proc/meminfo", "MemAvailable");
	return bytes || !line_of("/proc/meminfo", "MemAvailable", ':').empty() ? bytes : SIZE_MAX;
}
size_t resident_bytes(bool most_so_far) { return kilobytes_of("/proc/self/status", most_so_far ? "VmHWM" : "VmRSS"); }
std::string processor_name() {
	std::string name = line_of("/proc/cpuinfo", "model name", ':');
	if (name.empty()) std::getline(std::ifstream("/proc/device-tree/model"), name, '\0'); // Arm: the board's name
	return name;
}
std::string os_name() {
	std::string name = line_of("/etc/os-release", "PRETTY_NAME", '=');
	std::erase(name, '"');
	return name;
}
System system_names() {
	utsname u = {};
	uname(&u);
	return {u.sysname, u.release, u.machine, u.nodename};
}

std::string home_folder() {
	const char* h = std::getenv("HOME");
	return h && *h == '/' ? h : "";
}
std::string config_folder() { return folder("XDG_CONFIG_HOME", "/.config"); }
std::string cache_folder() { return folder("XDG_CACHE_HOME", "/.cache"); }
std::string state_folder() { return folder("XDG_STATE_HOME", "/.local/state"); }

std::vector<std::string> vulkan_driver_places() {
	std::vector<std::string> out;
	const auto add = [&](const std::string& folders) {
		for (size_t at = 0; at < folders.size();) {
			const size_t end = std::min(folders.find(':', at), folders.size());
			if (end > at) out.push_back(folders.substr(at, end - at) + "/vulkan/icd.d");
			at = end + 1;
		}
	};
	const auto value = [](const char* name, const std::string& fallback) {
		const char* v = std::getenv(name);
		return v && *v ? std::string(v) : fallback;
	};
	const std::string home = value("HOME", "");
	add(value("XDG_CONFIG_HOME", home + "/.config"));
	add(value("XDG_CONFIG_DIRS", "/etc/xdg"));
	add("/etc:/usr/local/etc");
	add(value("XDG_DATA_HOME", home + "/.local/share"));
	add(value("XDG_DATA_DIRS", "/usr/local/share:/usr/share"));
	return out;
}

size_t find_bytes(std::string_view text, std::string_view what, size_t from) {
	const void* hit = memmem(text.data() + from, text.size() - from, what.data(), what.size());
	return hit ? size_t(static_cast<const char*>(hit) - text.data()) : text.npos;
}
std::tm local_time() {
	const std::time_t t = std::time(nullptr);
	std::tm now{};
	localtime_r(&t, &now);
	return now;
}
std::string format_time(const std::string& conversion, const std::tm& time) {
	static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", locale_t{});
	char text[128];
	return {text, strftime_l(text, sizeof text, conversion.c_str(), &time, c_locale)};
}

std::string load_problem(const char* name, bool& missing) {
	missing = false;
	if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return dlclose(library), std::string();
	const char* error = dlerror();
	const std::string why = error ? error : "";
	missing = why.empty() || why.find("No such file") != why.npos;
	return why.empty() ? "it cannot be loaded" : why;
}

bool peer_closed(intptr_t socket) {
	pollfd p{int(socket), POLLRDHUP, 0};
	return ::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

} // namespace kvrun::sys
