// Facts about the machine, and the user's folders.
#pragma once
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::sys {

size_t memory_bytes();                   // 0: unknown
size_t memory_free_bytes();              // what can be had without swapping; SIZE_MAX: unknown
size_t resident_bytes(bool most_so_far); // of this process; 0: unknown
std::string processor_name();            // empty: unknown
std::string os_name();                   // "Debian GNU/Linux 12 (bookworm)"
struct System {
	std::string name, release, machine, host; // "Linux", "6.1.0", "x86_64", and the machine's own name
};
System system_names();

// Base folders of the user, as absolute paths; empty: unknown. XDG_CONFIG_HOME, XDG_CACHE_HOME and XDG_STATE_HOME are
// read on Windows too.
std::string home_folder();
std::string config_folder(); // ~/.config; Windows: the roaming application data
std::string cache_folder();  // ~/.cache; Windows: the local application data
std::string state_folder();  // ~/.local/state; Windows: the local application data

// Position of `what`, which is not empty, in the text at or after `from`; npos if there is none. Linear time.
size_t find_bytes(std::string_view text, std::string_view what, size_t from);
std::tm local_time();
// One conversion of strftime() in the C locale; glibc's flags, as in "%-d", work on Windows too.
std::string format_time(const std::string& conversion, const std::tm&);

// Manifests of Vulkan drivers, and folders that hold such files, in the loader's order.
std::vector<std::string> vulkan_driver_places();
// Why a shared library cannot be loaded; empty if it can. missing: no library has this name.
std::string load_problem(const char* name, bool& missing);

// Whether the peer of a TCP or Unix connection has closed it, or has closed its sending side.
bool peer_closed(intptr_t socket);

} // namespace kvrun::sys
