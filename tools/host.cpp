// The build and the machine, for the records of measurements.
#include "tools/host.h"
#include "engine/core/system/machine.h"
#include "tools/commit.inc"

namespace kvrun {

const char* build_commit() { return KVRUN_COMMIT; }
std::string processor_name() { return sys::processor_name(); }
std::string os_name() { return sys::os_name(); }

} // namespace kvrun
