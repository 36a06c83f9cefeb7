// What Windows says about the machine.
#include "engine/core/system/machine.h"
#include "engine/core/system/wide.h"
#include <cstdlib>
#include <filesystem>
#include <fmt/chrono.h>
#include <psapi.h>
#include <winsock2.h>

namespace kvrun::sys {
namespace {

std::string registry_text(const wchar_t* key, const wchar_t* value) {
	wchar_t text[256] = L"";
	DWORD bytes = sizeof text - sizeof *text;
	RegGetValueW(HKEY_LOCAL_MACHINE, key, value, RRF_RT_REG_SZ, nullptr, text, &bytes);
	return narrow(text);
}
constexpr const wchar_t* kVersion = L"SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion";

std::string folder(const char* variable, const char* own) {
	for (const char* name : {variable, own})
		if (const wchar_t* v = _wgetenv(wide(name).c_str()); v && std::filesystem::path(v).is_absolute())
			return narrow(v);
	return {};
}

} // namespace

size_t memory_bytes() {
	MEMORYSTATUSEX m{};
	m.dwLength = sizeof m;
	return GlobalMemoryStatusEx(&m) ? size_t(m.ullTotalPhys) : 0;
}
size_t memory_free_bytes() {
	MEMORYSTATUSEX m{};
	m.dwLength = sizeof m;
	return GlobalMemoryStatusEx(&m) ? size_t(m.ullAvailPhys) : SIZE_MAX;
}
size_t resident_bytes(bool most_so_far) {
	PROCESS_MEMORY_COUNTERS m{};
	if (!K32GetProcessMemoryInfo(GetCurrentProcess(), &m, sizeof m)) return 0;
	return most_so_far ? m.PeakWorkingSetSize : m.WorkingSetSize;
}
std::string processor_name() {
	return registry_text(L"HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0", L"ProcessorNameString");
}
std::string os_name() { return registry_text(kVersion, L"ProductName"); }
System system_names() {
	wchar_t host[256] = L"";
	DWORD n = DWORD(std::size(host));
	GetComputerNameW(host, &n);
	return {"Windows", registry_text(kVersion, L"CurrentBuildNumber"), "x86_64", narrow(host)};
}

std::string home_folder() { return folder("HOME", "USERPROFILE"); }
std::string config_folder() { return folder("XDG_CONFIG_HOME", "APPDATA"); }
std::string cache_folder() { return folder("XDG_CACHE_HOME", "LOCALAPPDATA"); }
std::string state_folder() { return folder("XDG_STATE_HOME", "LOCALAPPDATA"); }

std::vector<std::string> vulkan_driver_places() {
	std::vector<std::string> out;
	// of each graphics card: SYSTEM\...\{display}\0000, 0001 ..; then those of software drivers
	const std::wstring cards = L"SYSTEM\\CurrentControlSet\\Control\\Class\\{4d36e968-e325-11ce-bfc1-08002be10318}\\";
	for (int i = 0; i < 32; ++i) {
		const std::wstring n = std::to_wstring(i);
		const std::string file =
		    registry_text((cards + std::wstring(4 - n.size(), L'0') + n).c_str(), L"VulkanDriverName");
		if (!file.empty()) out.push_back(file);
	}
	HKEY key;
	if (RegOpenKeyExW(HKEY_LOCAL_MACHINE, L"SOFTWARE\\Khronos\\Vulkan\\Drivers", 0, KEY_READ, &key) != 0) return out;
	for (DWORD i = 0;; ++i) {
		wchar_t name[1024];
		DWORD length = DWORD(std::size(name)), off = 1, bytes = sizeof off;
		if (RegEnumValueW(key, i, name, &length, nullptr, nullptr, reinterpret_cast<BYTE*>(&off), &bytes) != 0) break;
		if (off == 0) out.push_back(narrow({name, length}));
	}
	RegCloseKey(key);
	return out;
}

size_t find_bytes(std::string_view text, std::string_view what, size_t from) { // Knuth, Morris and Pratt
	std::vector<size_t> border(what.size(), 0); // of each beginning: longest beginning that also ends it
	for (size_t i = 1, k = 0; i < what.size(); ++i) {
		while (k && what[i] != what[k]) k = border[k - 1];
		border[i] = k += what[i] == what[k];
	}
	for (size_t i = from, k = 0; i < text.size(); ++i) {
		while (k && text[i] != what[k]) k = border[k - 1];
		k += text[i] == what[k];
		if (k == what.size()) return i + 1 - k;
	}
	return text.npos;
}
std::tm local_time() {
	const std::time_t t = std::time(nullptr);
	std::tm now{};
	localtime_s(&now, &t);
	return now;
}
std::string format_time(const std::string& conversion, const std::tm& time) {
	const char flag = conversion.size() > 2 ? conversion[1] : 0, what = conversion.back();
	const char plain[] = {'{', ':', '%', what == 'P' ? 'p' : what, '}', 0};
	std::string text = fmt::format(fmt::runtime(plain), time);
	if (flag == '-')
		while (text.size() > 1 && (text[0] == '0' || text[0] == ' ')) text.erase(0, 1);
	if (flag == '_')
		for (size_t i = 0; i + 1 < text.size() && text[i] == '0'; ++i) text[i] = ' ';
	for (char& c : text) {
		if (what == 'P' && c >= 'A' && c <= 'Z') c = char(c + 32);
		if (flag == '^' && c >= 'a' && c <= 'z') c = char(c - 32);
	}
	return text;
}

std::string load_problem(const char* name, bool& missing) {
	missing = false;
	if (const HMODULE library = LoadLibraryW(wide(name).c_str())) return FreeLibrary(library), std::string();
	const DWORD error = GetLastError();
	missing = error == ERROR_MOD_NOT_FOUND || error == ERROR_FILE_NOT_FOUND;
	return "error " + std::to_string(error) + " of Windows";
}

// Windows tells of no half close while bytes that were not read wait.
bool peer_closed(intptr_t socket) {
	const SOCKET s = SOCKET(socket);
	WSAPOLLFD p{s, POLLRDNORM, 0};
	if (WSAPoll(&p, 1, 0) <= 0) return false;
	if (p.revents & (POLLHUP | POLLERR)) return true;
	char byte;
	return (p.revents & POLLRDNORM) && recv(s, &byte, 1, MSG_PEEK) == 0;
}

} // namespace kvrun::sys
