// A long text in parts that are drawn one below the other.
#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

namespace kvrun::desktop {

// Parts of at most `most` bytes, which end at the end of a line, else at a space, else at a character's. The line's end
// or the space between two parts is in neither.
inline std::vector<std::string_view> text_parts(std::string_view text, size_t most) {
	std::vector<std::string_view> out;
	while (text.size() > most) {
		size_t end = text.rfind('\n', most);
		if (end == text.npos) end = text.rfind(' ', most);
		const size_t between = end == text.npos ? 0 : 1;
		if (end == text.npos) {
			for (end = most; end > 1 && (text[end] & 0xC0) == 0x80;) --end; // not inside a UTF-8 character
		}
		out.push_back(text.substr(0, end));
		text.remove_prefix(end + between);
	}
	out.push_back(text);
	return out;
}

} // namespace kvrun::desktop
