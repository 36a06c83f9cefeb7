// Splits the Markdown of an answer into parts: styled text as HTML, and code, which has its own widget.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::desktop {

struct Part {
	bool code = false;
	std::string language; // of code, as written after the fence; may be empty
	std::string text;     // HTML, or verbatim code
	int indent = 0;       // of code: number of enclosing lists
	bool operator==(const Part&) const = default;
};

// Accepts any text: text without markup becomes a paragraph, HTML is shown as text, and an open fence extends to the
// end. Formulas in LaTeX are shown as they are written. Images become links to the web or text, so that an answer
// cannot make the window load anything.
std::vector<Part> parse_markdown(std::string_view text);

} // namespace kvrun::desktop
