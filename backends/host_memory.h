// Information from the system about the host's memory.
#pragma once
#include <cstddef>

namespace kvrun {

size_t host_memory_bytes(); // 0: unknown
// Bytes that can be used without harming other processes: available minus a tenth of the total. SIZE_MAX: unknown.
size_t host_free_bytes();

} // namespace kvrun
