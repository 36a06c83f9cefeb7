// Information from the system about the host's memory.
#include "backends/host_memory.h"
#include "engine/core/system/machine.h"
#include <cstdint>

namespace kvrun {

size_t host_memory_bytes() { return sys::memory_bytes(); }

size_t host_free_bytes() {
	const size_t all = host_memory_bytes(), available = sys::memory_free_bytes(), reserve = all / 10;
	if (all == 0 || available == SIZE_MAX) return SIZE_MAX;
	return available > reserve ? available - reserve : 0;
}

} // namespace kvrun
