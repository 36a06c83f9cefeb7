// Parts of HTTP answers.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvrun {

// The address of `<ADDRESS>; rel="next"`; empty if there is none.
inline std::string next_link(const std::string& value) {
	const size_t rel = value.find("rel=\"next\"");
	const size_t open = rel == value.npos ? rel : value.rfind('<', rel);
	const size_t close = open == value.npos ? open : value.find('>', open);
	return close == value.npos ? "" : value.substr(open + 1, close - open - 1);
}

// The position in `bytes FIRST-LAST/ALL`; 0 if it is something else.
inline uint64_t first_of_range(const std::string& value) {
	uint64_t first = 0;
	if (value.starts_with("bytes ")) std::from_chars(value.data() + 6, value.data() + value.size(), first);
	return first;
}

// Adds a piece to the text of an error, of which the beginning is kept; false: nothing more is needed.
inline bool add_error_text(std::string& body, std::string_view piece) {
	constexpr size_t kLongest = 4096;
	body += piece.substr(0, kLongest - std::min(kLongest, body.size()));
	return body.size() < kLongest;
}

} // namespace kvrun
