// JSON as text; bytes that are not UTF-8 become U+FFFD.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace kvrun {

inline std::string json_line(const nlohmann::ordered_json& j) {
	return j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}
// Indented, for files.
inline std::string json_lines(const nlohmann::ordered_json& j) {
	return j.dump(1, '\t', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

} // namespace kvrun
