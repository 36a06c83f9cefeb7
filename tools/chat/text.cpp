// Errors of kvrun chat, and text from outside made fit for a terminal and for a template.
#include "tools/chat/text.h"
#include "tools/commands.h"
#include "tools/terminal.h"
#include <cstdio>
#include <utf8proc.h>

namespace kvrun {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd"; // U+FFFD

// Calls take(character's bytes, code point); the code point is -1 for a byte that is not UTF-8.
template <class F> void each_character(std::string_view text, F&& take) {
	for (size_t at = 0; at < text.size();) {
		utf8proc_int32_t code = -1;
		const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
		const utf8proc_ssize_t n = utf8proc_iterate(bytes, utf8proc_ssize_t(text.size() - at), &code);
		const size_t length = n > 0 ? size_t(n) : 1;
		take(text.substr(at, length), n > 0 ? code : -1);
		at += length;
	}
}

} // namespace

int exit_code_of(kvrun_status s) {
	switch (s) {
	case KVRUN_OK: return 0;
	case KVRUN_EINVALID: return 2;
	case KVRUN_ENOTFOUND:
	case KVRUN_EUNSUPPORTED:
	case KVRUN_EFORMAT: return 3;
	case KVRUN_ENOMEM:
	case KVRUN_EDEVICE: return 4;
	case KVRUN_EBUSY: // a chat that is open elsewhere
	case KVRUN_EIO: return 5;
	case KVRUN_ECONTEXT: return 6;
	case KVRUN_ECANCELLED: return kInterrupted;
	default: return 1;
	}
}

std::string well_formed(std::string_view text) {
	std::string out;
	out.reserve(text.size());
	each_character(text, [&](std::string_view c, int32_t code) { out += code < 0 ? kReplacement : c; });
	return out;
}

std::string visible(std::string_view text, bool lines) {
	std::string out;
	each_character(text, [&](std::string_view c, int32_t code) {
		if (code < 0)
			out += kReplacement;
		else if (code == '\t' || (code == '\n' && lines))
			out += c;
		else if (code == '\n')
			out += "\\n";
		else if (code < 0x20 || (code >= 0x7f && code < 0xa0)) // U+0080..U+009F steer terminals too
			out += fmt::format("\\x{:02x}", code);
		else
			out += c;
	});
	return out;
}

void say(std::string_view text) { say_stats(visible(text)); }

void say_error(std::string_view text) { std::fputs(fmt::format("error: {}\n", visible(text)).c_str(), stderr); }

} // namespace kvrun
