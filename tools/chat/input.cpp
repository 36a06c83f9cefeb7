// What the user types: plain lines, messages of several lines.
#include "tools/chat/input.h"
#include "engine/core/system/files.h"
#include "engine/core/system/terminal.h"
#include "tools/terminal.h"
#include "tools/text.h"
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvrun {
namespace {

constexpr size_t kLongestEntry = size_t(64) << 20; // bytes
constexpr std::string_view kQuotes = "\"\"\"";

void check_length(size_t bytes) {
	if (bytes > kLongestEntry) fail_status(KVRUN_ECONTEXT, "a message has more than {} bytes", kLongestEntry);
}

class PlainInput : public LineInput {
 public:
	Got read(const char* prompt, std::string& line) override {
		const bool typed = sys::is_terminal(0);
		const auto show = [typed](std::string_view text) { // not between answers that go to a file
			if (typed && sys::is_terminal(1)) return write_stdout(text);
			if (typed) std::fwrite(text.data(), 1, text.size(), stderr);
		};
		show(prompt);
		for (size_t looked = 0;;) {
			const size_t end = held_.find('\n', looked);
			if (end != std::string::npos) return take(end, end + 1, line);
			looked = held_.size();
			check_length(looked);
			char piece[65536];
			const ptrdiff_t n = sys::read_file(0, piece);
			if (n < 0) fail_status(KVRUN_EIO, "standard input: {}", std::generic_category().message(errno));
			if (n == 0 && !held_.empty()) return take(held_.size(), held_.size(), line);
			if (n == 0) return show("\n"), Got::End;
			held_.append(piece, size_t(n));
		}
	}

 private:
	Got take(size_t length, size_t drop, std::string& line) {
		line = held_.substr(0, length);
		if (line.ends_with('\r')) line.pop_back();
		held_.erase(0, drop);
		return Got::Line;
	}
	std::string held_; // input that is not a complete line yet
};

} // namespace

std::unique_ptr<LineInput> plain_input() { return std::make_unique<PlainInput>(); }

LineInput::Got read_entry(LineInput& input, std::string& entry) {
	LineInput::Got got = input.read("> ", entry);
	if (got != LineInput::Got::Line) return got;
	if (!entry.starts_with(kQuotes)) {
		input.remember(entry);
		return got;
	}
	entry.erase(0, kQuotes.size());
	for (std::string line; !entry.ends_with(kQuotes); entry += line) {
		got = input.read("... ", line);
		if (got == LineInput::Got::Interrupt) return got;
		if (got == LineInput::Got::End)
			fail_status(KVRUN_EINVALID, "a message that begins with {} has no end; end it with {}", kQuotes, kQuotes);
		entry += '\n';
		check_length(entry.size() + line.size());
	}
	entry.resize(entry.size() - kQuotes.size());
	if (entry.starts_with('\n')) entry.erase(0, 1);
	if (entry.ends_with('\n')) entry.pop_back();
	input.remember(fmt::format("{}{}{}", kQuotes, entry, kQuotes));
	return LineInput::Got::Line;
}

bool is_interactive() { return sys::is_terminal(0) && sys::is_terminal(1); }
bool edits_lines() { return is_interactive() && sys::terminal_has_cursor(); }

} // namespace kvrun
