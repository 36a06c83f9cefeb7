// Information from the system about the host's memory and processor.
#pragma once
#include <cstddef>
#include <string>

namespace kvrun {

// Value of the first line `key : value` of a /proc file; empty if there is no such file or line.
std::string proc_line(const char* file, const std::string& key);
size_t host_memory_bytes(); // 0: unknown
// Bytes that can be used without harming other processes: available minus a tenth of the total. SIZE_MAX: unknown.
size_t host_free_bytes();

} // namespace kvrun
