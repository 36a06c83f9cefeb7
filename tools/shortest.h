// Numbers as people wrote them.
#pragma once
#include <charconv>
#include <fmt/format.h>
#include <string>

namespace kvrun {

// The shortest decimal that reads back as this float, not the digits of its double.
inline double shortest(float v) {
	const std::string digits = fmt::format("{}", v);
	double d = 0;
	std::from_chars(digits.data(), digits.data() + digits.size(), d);
	return d;
}

} // namespace kvrun
