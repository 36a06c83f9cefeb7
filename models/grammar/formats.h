// Patterns for the formats of strings in JSON schemas.
#pragma once
#include <string>
#include <string_view>

namespace kvrun::grammar {

std::string_view format_pattern(std::string_view format); // empty: unknown format
std::string format_names();                               // "date, time, ..."

} // namespace kvrun::grammar
