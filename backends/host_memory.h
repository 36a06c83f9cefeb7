// What the system says of the host: its memory, its processor.
#pragma once
#include <cstddef>
#include <string>

namespace kvrun {

// Value of the first line `key : value` of a /proc file; empty where there is no such file or line.
std::string proc_line(const char* file, const std::string& key);
size_t host_memory_bytes(); // 0: unknown
// What may still be taken without others suffering: available less a tenth of all. SIZE_MAX: unknown.
size_t host_free_bytes();

} // namespace kvrun
