// Markdown of an answer as parts of a window: styled text as HTML, and code, which is drawn by itself.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::desktop {

struct Part {
	bool code = false;
	std::string language; // of code, as written behind the fence; may be empty
	std::string text;     // HTML, or the code as it is
	int indent = 0;       // of code: lists that it stands in
	bool operator==(const Part&) const = default;
};

// Any text has parts: what is no markdown is a paragraph, HTML in it is text, a fence that has not ended yet goes to
// the end. Pictures become links, so that an answer makes the window read nothing.
std::vector<Part> parse_markdown(std::string_view text);
// Text with <, >, & and " written out.
std::string html_text(std::string_view text);

} // namespace kvrun::desktop
