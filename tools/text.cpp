// Messages of programs on the C API; sanitizes external text for a terminal and for a template.
#include "tools/text.h"
#include "tools/terminal.h"
#include <cstdio>
#include <utf8proc.h>

namespace kvrun {

std::string well_formed(std::string_view text) {
	std::string out;
	out.reserve(text.size());
	for (size_t at = 0; at < text.size();) {
		utf8proc_int32_t code = -1;
		const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
		const utf8proc_ssize_t n = utf8proc_iterate(bytes, utf8proc_ssize_t(text.size() - at), &code);
		out += n > 0 ? text.substr(at, size_t(n)) : "\xef\xbf\xbd"; // U+FFFD
		at += n > 0 ? size_t(n) : 1;
	}
	return out;
}

void say(std::string_view text) { say_stats(visible(text, /*lines=*/false)); }

void say_error(std::string_view text) {
	std::fputs(fmt::format("error: {}\n", visible(text, /*lines=*/false)).c_str(), stderr);
}

} // namespace kvrun
