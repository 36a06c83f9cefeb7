// Status codes and error texts of the C API; version and log.
#include "engine/api/status.h"
#include <cstring>
#include <new>

namespace kvrun::api {
namespace {
// No destructor and no allocation: it works without free memory, and unloading the library leaves nothing behind.
thread_local char last_error[1024];
} // namespace

void set_last_error(const char* text) noexcept {
	const size_t n = strnlen(text, sizeof(last_error) - 1);
	std::memmove(last_error, text, n);
	last_error[n] = 0;
}

kvrun_status status_of(Code c) {
	switch (c) {
	case Code::Invalid: return KVRUN_EINVALID;
	case Code::NotFound: return KVRUN_ENOTFOUND;
	case Code::Unsupported: return KVRUN_EUNSUPPORTED;
	case Code::OutOfMemory: return KVRUN_ENOMEM;
	case Code::Device: return KVRUN_EDEVICE;
	case Code::Io: return KVRUN_EIO;
	case Code::Format: return KVRUN_EFORMAT;
	case Code::Context: return KVRUN_ECONTEXT;
	case Code::Internal: break;
	}
	return KVRUN_EINTERNAL;
}

kvrun_status failed() noexcept {
	try {
		throw;
	} catch (const Failure& e) {
		set_last_error(e.what());
		return e.status;
	} catch (const Error& e) {
		set_last_error(e.what());
		return status_of(e.code);
	} catch (const std::bad_alloc&) {
		set_last_error("out of host memory");
		return KVRUN_ENOMEM;
	} catch (const std::exception& e) {
		set_last_error(e.what());
		return KVRUN_EINTERNAL;
	} catch (...) {
		set_last_error("unknown exception");
		return KVRUN_EINTERNAL;
	}
}

LogSink log_sink(kvrun_log_cb cb, void* payload) {
	return [cb, payload](int level, std::string_view line) {
		const std::string text(line);
		cb(level, text.c_str(), text.size(), payload);
	};
}

} // namespace kvrun::api

using namespace kvrun;
using namespace kvrun::api;

uint32_t kvrun_abi_version(void) { return KVRUN_ABI_VERSION; }
const char* kvrun_version(void) { return KVRUN_VERSION; }
const char* kvrun_last_error(void) { return last_error; }

const char* kvrun_status_name(kvrun_status s) {
	switch (s) {
	case KVRUN_OK: return "KVRUN_OK";
	case KVRUN_EINVALID: return "KVRUN_EINVALID";
	case KVRUN_ENOTFOUND: return "KVRUN_ENOTFOUND";
	case KVRUN_EUNSUPPORTED: return "KVRUN_EUNSUPPORTED";
	case KVRUN_ENOMEM: return "KVRUN_ENOMEM";
	case KVRUN_EDEVICE: return "KVRUN_EDEVICE";
	case KVRUN_EIO: return "KVRUN_EIO";
	case KVRUN_EBUFFER: return "KVRUN_EBUFFER";
	case KVRUN_EUSER: return "KVRUN_EUSER";
	case KVRUN_EFORMAT: return "KVRUN_EFORMAT";
	case KVRUN_ECONTEXT: return "KVRUN_ECONTEXT";
	case KVRUN_EBUSY: return "KVRUN_EBUSY";
	case KVRUN_ECANCELLED: return "KVRUN_ECANCELLED";
	case KVRUN_EINTERNAL: return "KVRUN_EINTERNAL";
	}
	return "unknown";
}

kvrun_status kvrun_set_log(kvrun_log_cb cb, int max_level, void* payload) {
	return guard([&] {
		if (!cb) return set_log_sink({}, 0);
		set_log_sink(log_sink(cb, payload), max_level);
	});
}
