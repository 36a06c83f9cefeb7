// Errors of requests, in the form of OpenAI's API.
#include "tools/serve/error.h"
#include <cstdio>

namespace kvrun::serve {

static const char* error_type(int status) {
	switch (status) {
	case 401: return "authentication_error";
	case 403: return "permission_error";
	case 404: return "not_found_error";
	case 429: return "rate_limit_error";
	default: return status >= 500 ? "server_error" : "invalid_request_error";
	}
}

void unsupported(const char* param, const std::string& why) {
	throw ApiError(400, param + why, param, "unsupported_parameter");
}

Json error_json(const ApiError& e) {
	const auto or_null = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
	return {{"error",
	         {{"message", e.what()},
	          {"type", error_type(e.status)},
	          {"param", or_null(e.param)},
	          {"code", or_null(e.code)}}}};
}

Response error_response(const ApiError& e) {
	Response r{e.status, dump(error_json(e))};
	if (e.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
	if (e.status == 429 || e.status == 503) r.headers.emplace_back("Retry-After", "1");
	return r;
}

ApiError engine_error(kvrun_status s, const std::string& message, const std::string& param) {
	switch (s) {
	case KVRUN_ECONTEXT: return {400, message, param, "context_length_exceeded"};
	case KVRUN_EINVALID:
	case KVRUN_ENOTFOUND:
	case KVRUN_EUNSUPPORTED:
	case KVRUN_EFORMAT: return {400, message, param};
	case KVRUN_ENOMEM: return {503, message, "", "out_of_memory"};
	case KVRUN_EIO: // the message names files of this machine, which clients must not see
		std::fprintf(stderr, "error: %s\n", message.c_str());
		return {500, "a file of the server could not be read or written; its log says which"};
	default: return {500, message};
	}
}

void check(kvrun_status s, const char* param) {
	if (s != KVRUN_OK) throw engine_error(s, kvrun_last_error(), param);
}

} // namespace kvrun::serve
