// The formats of strings in JSON schemas, as patterns.
#pragma once
#include <string>
#include <string_view>

namespace kvrun::grammar {

std::string_view format_pattern(std::string_view format); // empty: it is not known
std::string format_names();                               // "date, time, ..."

} // namespace kvrun::grammar
