// Reads JSON in time linear in its length, within limits. The library's own parser searches all keys of an object for
// each new key, and copies an object's members whenever it grows.
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
	size_t keys = SIZE_MAX;     // of all objects, repeated keys included
	std::function<bool()> stop; // called at intervals; true ends the reading; may be empty
};

// Returns false and sets `why` if the text is not JSON in UTF-8, or exceeds a limit. Of members with equal keys the
// last one counts.
bool read_json(std::string_view text, const JsonLimits&, nlohmann::ordered_json& out, std::string& why);

} // namespace kvrun
