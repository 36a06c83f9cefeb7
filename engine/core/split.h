// Parts of a text between separators.
#pragma once
#include <algorithm>
#include <string_view>
#include <vector>

namespace kvrun {

// Views into s; at least one, and empty ones where separators follow each other.
inline std::vector<std::string_view> split(std::string_view s, char separator) {
	std::vector<std::string_view> out;
	for (size_t begin = 0; begin <= s.size();) {
		const size_t end = std::min(s.find(separator, begin), s.size());
		out.push_back(s.substr(begin, end - begin));
		begin = end + 1;
	}
	return out;
}

} // namespace kvrun
