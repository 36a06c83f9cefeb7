// Formulas in LaTeX, which Markdown would read as its own marks.
#include "tools/desktop/maths.h"
#include <algorithm>
#include <charconv>
#include <utility>

namespace kvrun::desktop {
namespace {

// A mark is the number of a formula between these two, which are characters for private use.
constexpr std::string_view kBegin = "\uf8f0", kEnd = "\uf8f1";

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n'; }

// End of the paragraph that `at` is in: a blank line, a fence of code, or the end of the text.
size_t paragraph_end(std::string_view s, size_t at) {
	for (size_t line = s.find('\n', at); line != s.npos; line = s.find('\n', line + 1)) {
		const size_t first = s.find_first_not_of(" \t", line + 1);
		if (first == s.npos || s[first] == '\n') return line;
		if (s.substr(first, 3) == "```" || s.substr(first, 3) == "~~~") return line;
	}
	return s.size();
}

// Number of equal characters at the beginning.
size_t run_of(std::string_view s, char c) { return std::min(s.find_first_not_of(c), s.size()); }

// Length of the code span that begins here; 0: none ends in this paragraph.
size_t code_span(std::string_view s) {
	const size_t ticks = run_of(s, '`');
	for (size_t at = ticks; (at = s.find('`', at)) != s.npos;) {
		const size_t n = run_of(s.substr(at), '`');
		if (n == ticks) return at + n;
		at += n;
	}
	return 0;
}

// Length of $...$: text stands close to both signs and no digit follows, else the signs are of money.
size_t dollars(std::string_view s) {
	if (s.starts_with("$$")) {
		const size_t end = s.find("$$", 2);
		return end == s.npos || end == 2 ? 0 : end + 2;
	}
	if (s.size() < 3 || is_space(s[1])) return 0;
	for (size_t at = 1; (at = s.find('$', at)) != s.npos; ++at) {
		if (s[at - 1] == '\\') continue;
		const bool digit = at + 1 < s.size() && s[at + 1] >= '0' && s[at + 1] <= '9';
		return is_space(s[at - 1]) || digit ? 0 : at + 1;
	}
	return 0;
}

// Length of the formula that begins here; 0: none. `s` ends with its paragraph.
size_t formula(std::string_view s) {
	if (s[0] == '$') return dollars(s);
	for (const auto& [begin, end] : {std::pair<std::string_view, std::string_view>{"\\(", "\\)"}, {"\\[", "\\]"}})
		if (s.starts_with(begin))
			if (const size_t at = s.find(end, 2); at != s.npos) return at + 2;
	return 0;
}

// Length of a space of LaTeX, like \, in x\,dx: as an escape of Markdown it has no use.
size_t latex_space(std::string_view s) {
	if (s.size() < 2 || s[0] != '\\') return 0;
	const bool image = s.starts_with("\\![");
	return std::string_view(",;:!").find(s[1]) != std::string_view::npos && !image ? 2 : 0;
}

} // namespace

void Maths::keep(std::string_view source, bool plain) {
	text_ += std::string(kBegin) + std::to_string(formulas_.size()) + std::string(kEnd);
	formulas_.push_back({std::string(source), plain});
}

Maths::Maths(std::string_view s) {
	if (s.find(kBegin) != s.npos || s.find_first_of("\\$") == s.npos) {
		text_ = s;
		return;
	}
	std::string_view fence; // of the block of code
	bool line_begins = true;
	size_t end = 0; // of the paragraph
	for (size_t at = 0; at < s.size();) {
		if (line_begins) {
			line_begins = false;
			const size_t stop = std::min(s.find('\n', at), s.size());
			const std::string_view line = s.substr(at, stop - at);
			const std::string_view body = line.substr(std::min(line.find_first_not_of(" \t>"), line.size()));
			const bool mark = body.starts_with("```") || body.starts_with("~~~");
			const bool was_code = !fence.empty();
			if (mark && !was_code)
				fence = body.substr(0, run_of(body, body[0]));
			else if (mark && body.starts_with(fence))
				fence = {};
			if (mark || was_code) { // as it is
				text_ += s.substr(at, std::min(stop + 1, s.size()) - at);
				at = stop + 1, line_begins = true;
				continue;
			}
		}
		if (at >= end) end = paragraph_end(s, at);
		const std::string_view rest = s.substr(at, end - at);
		const char c = s[at];
		size_t n = 0;
		if (rest.empty()) {
			n = 0;
		} else if (c == '`') {
			n = code_span(rest);
			if (!n) n = run_of(rest, '`');
			text_ += rest.substr(0, n);
		} else if (c == '\\' || c == '$') {
			n = formula(rest);
			bool plain = false;
			if (!n) n = latex_space(rest), plain = true;
			if (n) {
				keep(rest.substr(0, n), plain);
			} else if (c == '\\' && rest.size() > 1 && rest[1] != '\n') { // an escape of Markdown
				n = 2;
				text_ += rest.substr(0, n);
			}
		}
		if (n) {
			at += n;
			continue;
		}
		text_ += c;
		line_begins = c == '\n';
		++at;
	}
}

const Maths::Formula* Maths::at(std::string_view s, size_t& length) const {
	if (formulas_.empty() || !s.starts_with(kBegin)) return nullptr;
	const size_t end = s.find(kEnd);
	size_t number = formulas_.size();
	if (end != s.npos) std::from_chars(s.data() + kBegin.size(), s.data() + end, number);
	if (number >= formulas_.size()) return nullptr;
	length = end + kEnd.size();
	return &formulas_[number];
}

std::string Maths::restored(std::string_view s) const {
	std::string out;
	while (!s.empty()) {
		const size_t mark = std::min(s.find(kBegin), s.size());
		out += s.substr(0, mark);
		s.remove_prefix(mark);
		size_t length = 0;
		if (const Formula* f = at(s, length))
			out += f->source, s.remove_prefix(length);
		else if (!s.empty())
			out += s[0], s.remove_prefix(1);
	}
	return out;
}

} // namespace kvrun::desktop
