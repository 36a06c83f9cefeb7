// Text for HTML and SVG.
#pragma once
#include <string>
#include <string_view>

namespace kvrun {

inline std::string escaped(std::string_view text) {
	std::string out;
	out.reserve(text.size());
	for (const char c : text) {
		switch (c) {
		case '<': out += "&lt;"; break;
		case '>': out += "&gt;"; break;
		case '&': out += "&amp;"; break;
		case '"': out += "&quot;"; break;
		case '\'': out += "&#39;"; break;
		default: out += c;
		}
	}
	return out;
}

} // namespace kvrun
