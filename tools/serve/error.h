// Errors of requests, in the form of OpenAI's API.
#pragma once
#include "engine/kvrun.h"
#include "tools/json_text.h"
#include "tools/serve/http.h"
#include <stdexcept>

namespace kvrun::serve {

using Json = nlohmann::ordered_json;

struct ApiError : std::runtime_error {
	ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
	    : std::runtime_error(message), status(status), param(std::move(param)), code(std::move(code)) {}
	int status;
	std::string param; // the field at fault; empty if none
	std::string code;  // machine-readable code; empty if none
};

// Refuses `param` with 400 and code "unsupported_parameter"; the message is the name and `why`.
[[noreturn]] void unsupported(const char* param, const std::string& why);

// {"error": {"message", "type", "param", "code"}}
Json error_json(const ApiError&);
// The error as a response, with its status and headers.
Response error_response(const ApiError&);
// Maps the status of a failed library call to an ApiError; message: kvrun_last_error().
ApiError engine_error(kvrun_status, const std::string& message, const std::string& param = {});
// Throws engine_error() unless the call succeeded.
void check(kvrun_status, const char* param = "");

inline std::string dump(const Json& j) { return json_line(j); }

} // namespace kvrun::serve
