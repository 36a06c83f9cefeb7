// The build and the machine, for the records of measurements.
#pragma once
#include <string>

namespace kvrun {

// "8a1f3c0d2e4b", with "+" where files had been changed; "unknown" for a build outside a repository.
const char* build_commit();
std::string processor_name(); // as reported by the system; empty if unknown
std::string os_name();        // from /etc/os-release: "Debian GNU/Linux 12 (bookworm)"; empty if unknown

} // namespace kvrun
