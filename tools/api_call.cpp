// Helpers for programs that use the C API: exit codes, errors, owning handles, growing buffers.
#include "tools/api_call.h"
#include "tools/commands.h"

namespace kvrun {

int exit_code_of(kvrun_status s) {
	switch (s) {
	case KVRUN_OK: return 0;
	case KVRUN_EINVALID: return 2;
	case KVRUN_ENOTFOUND:
	case KVRUN_EUNSUPPORTED:
	case KVRUN_EFORMAT: return 3;
	case KVRUN_ENOMEM:
	case KVRUN_EDEVICE: return 4;
	case KVRUN_EBUSY: // a file that is open elsewhere
	case KVRUN_EIO: return 5;
	case KVRUN_ECONTEXT: return 6;
	case KVRUN_ECANCELLED: return kInterrupted;
	default: return 1;
	}
}

} // namespace kvrun
