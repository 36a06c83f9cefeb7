// Replaces HTTP in builds without libcurl.
#include "engine/core/error.h"
#include "tools/hub/http.h"

namespace kvrun {

const char* why_no_http() {
	return "this kvrun was built without libcurl (Debian: libcurl4-openssl-dev, libssl-dev) and cannot fetch";
}

HttpReply get_text(const std::string&, const std::string&) { fail(Code::Unsupported, "{}", why_no_http()); }

HttpReply get_range(const RangeRequest&) { fail(Code::Unsupported, "{}", why_no_http()); }

} // namespace kvrun
