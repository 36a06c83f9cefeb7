// Reads JSON in time that grows with its length, within limits. The library's own parser searches all keys of an object
// for each new one, and copies what an object holds whenever it grows.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace kvrun {

struct JsonLimits {
	size_t depth = 256;         // of nested arrays and objects
	size_t values = SIZE_MAX;   // of all kinds, in the whole text
	size_t keys = SIZE_MAX;     // of all objects, those that come twice too
	std::function<bool()> stop; // asked now and then; true: reading ends; none: never
};

// False, with why: the text is not JSON in UTF-8, or breaks a limit. Of two members with one key the last one counts.
bool read_json(std::string_view text, const JsonLimits&, nlohmann::ordered_json& out, std::string& why);

} // namespace kvrun
