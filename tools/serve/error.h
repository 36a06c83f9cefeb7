// What goes wrong with a request, as OpenAI's API says it.
#pragma once
#include "engine/kvrun.h"
#include "tools/serve/http.h"
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace kvrun::serve {

using Json = nlohmann::ordered_json;

struct ApiError : std::runtime_error {
	ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
	    : std::runtime_error(message), status(status), param(std::move(param)), code(std::move(code)) {}
	int status;
	std::string param; // field at fault; empty: none
	std::string code;  // for programs; empty: none
};

// {"error": {"message", "type", "param", "code"}}
Json error_json(const ApiError&);
// The same with its status and the headers that go with it.
Response error_response(const ApiError&);
// kvrun_last_error() of a call that failed because of a request.
ApiError engine_error(kvrun_status, const std::string& message, const std::string& param = {});
// Throws engine_error() unless the call succeeded.
void check(kvrun_status, const char* param = "");

std::string dump(const Json&); // on one line; bytes that are not UTF-8 become U+FFFD

} // namespace kvrun::serve
