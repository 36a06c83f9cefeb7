// Characters and the pieces of texts.
#include "models/jinja/lib/text.h"
#include "engine/core/system/machine.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <cstring>
#include <utf8proc.h>

namespace kvrun::jinja {

// ---- characters

char32_t next_char(std::string_view s, size_t& at) {
	const uint8_t c = uint8_t(s[at]);
	const size_t n = std::max<size_t>(utf8_lead(c), 1);
	char32_t out = n == 1 ? c : c & (0xffu >> (n + 1));
	for (size_t i = 1; i < n && at + i < s.size(); ++i) out = out << 6 | (uint8_t(s[at + i]) & 0x3fu);
	at = std::min(at + n, s.size());
	return out;
}

size_t char_count(std::string_view s) {
	return size_t(std::count_if(s.begin(), s.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

size_t char_offset(std::string_view s, size_t n) {
	size_t at = 0;
	for (; n > 0 && at < s.size(); --n) at = std::min(at + std::max<size_t>(utf8_lead(uint8_t(s[at])), 1), s.size());
	return at;
}

void append_char(std::string& out, char32_t c) {
	if (c < 0x80) {
		out += char(c);
	} else if (c < 0x800) {
		out += {char(0xc0 | c >> 6), char(0x80 | (c & 0x3f))};
	} else if (c < 0x10000) {
		out += {char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 0x3f)), char(0x80 | (c & 0x3f))};
	} else {
		out += {char(0xf0 | c >> 18), char(0x80 | (c >> 12 & 0x3f)), char(0x80 | (c >> 6 & 0x3f)),
		        char(0x80 | (c & 0x3f))};
	}
}

// As Python's str.isspace().
bool is_space(char32_t c) {
	return c == ' ' || (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x1f) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
	       (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool is_alpha(char32_t c) {
	const auto k = utf8proc_category(int32_t(c));
	return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return utf8proc_category(int32_t(c)) == UTF8PROC_CATEGORY_ND; }
bool is_numeric(char32_t c) {
	const auto k = utf8proc_category(int32_t(c));
	return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}
bool is_upper(char32_t c) { return utf8proc_category(int32_t(c)) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return utf8proc_category(int32_t(c)) == UTF8PROC_CATEGORY_LL; }
bool is_word(char32_t c) {
	if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
	const auto k = utf8proc_category(int32_t(c));
	return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NO) || k == UTF8PROC_CATEGORY_PC;
}
bool is_printable(char32_t c) {
	const auto k = utf8proc_category(int32_t(c));
	return c == ' ' || (k != UTF8PROC_CATEGORY_CN && k < UTF8PROC_CATEGORY_ZS);
}

// ---- search

size_t find_text(std::string_view s, std::string_view what, size_t from) {
	if (from > s.size()) return s.npos;
	if (what.empty()) return from;
	return sys::find_bytes(s, what, from);
}

// The same from the back. Scanning from the back place by place would take time in the product of both lengths.
size_t rfind_text(std::string_view s, std::string_view what) {
	if (what.empty()) return s.size();
	const std::string back(s.rbegin(), s.rend()), back_what(what.rbegin(), what.rend());
	const size_t at = find_text(back, back_what);
	return at == s.npos ? s.npos : s.size() - at - what.size();
}

// ---- case

namespace {

constexpr char32_t kSharpS = 0xdf;

void add_upper(std::string& out, char32_t c) {
	if (c == kSharpS)
		out += "SS";
	else
		append_char(out, char32_t(utf8proc_toupper(int32_t(c))));
}
void add_title(std::string& out, char32_t c) {
	if (c == kSharpS)
		out += "Ss";
	else
		append_char(out, char32_t(utf8proc_totitle(int32_t(c))));
}
void add_lower(std::string& out, char32_t c) { append_char(out, char32_t(utf8proc_tolower(int32_t(c)))); }

// The text with each character replaced by what `f(out, c)` writes; marks are kept.
template <class F> Value each_char(Run& run, const Value& t, F&& f) {
	run.spend_chars(t.size);
	TextBuilder out(run);
	std::string piece;
	for (size_t at = 0; at < t.size;) {
		const bool data = mark_at(t, at);
		piece.clear();
		do { // as long as marks are equal
			f(piece, next_char(t.str(), at));
		} while (at < t.size && mark_at(t, at) == data && piece.size() < 4096);
		out.add(piece, data);
	}
	Value v = out.take();
	v.markup = t.markup;
	return v;
}

} // namespace

Value to_upper(Run& run, const Value& t) { return each_char(run, t, add_upper); }
Value to_lower(Run& run, const Value& t) { return each_char(run, t, add_lower); }
Value swap_case(Run& run, const Value& t) {
	Value v = each_char(run, t, [](std::string& s, char32_t c) {
		if (is_lower(c))
			add_upper(s, c);
		else if (is_upper(c))
			add_lower(s, c);
		else
			append_char(s, c);
	});
	v.markup = false;
	return v;
}
Value capitalize(Run& run, const Value& t) {
	bool first = true;
	return each_char(run, t, [&](std::string& s, char32_t c) {
		if (first)
			add_title(s, c);
		else
			add_lower(s, c);
		first = false;
	});
}
Value title_words(Run& run, const Value& t) {
	bool start = true;
	Value v = each_char(run, t, [&](std::string& s, char32_t c) {
		const bool between = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
		if (start || between)
			add_upper(s, c);
		else
			add_lower(s, c);
		start = between;
	});
	v.markup = false;
	return v;
}
Value title_letters(Run& run, const Value& t) {
	bool inside = false; // inside a word
	Value v = each_char(run, t, [&](std::string& s, char32_t c) {
		if (inside)
			add_lower(s, c);
		else
			add_title(s, c);
		inside = is_upper(c) || is_lower(c);
	});
	v.markup = false;
	return v;
}

// ---- pieces

namespace {

template <class F> Value strip_if(const Value& t, Side side, F&& goes) { // goes: whether a character is stripped
	const std::string_view s = t.str();
	size_t from = 0, to = s.size();
	if (side != Side::Right)
		while (from < to) {
			const size_t n = char_offset(s.substr(from), 1);
			if (!goes(s.substr(from, n))) break;
			from += n;
		}
	if (side != Side::Left)
		while (to > from) {
			size_t start = to - 1;
			while (start > from && (uint8_t(s[start]) & 0xc0) == 0x80) --start;
			if (!goes(s.substr(start, to - start))) break;
			to = start;
		}
	return part(t, from, to - from);
}

} // namespace

Value strip(const Value& t, Side side) {
	return strip_if(t, side, [](std::string_view c) {
		size_t at = 0;
		return is_space(next_char(c, at));
	});
}

Value strip(Run& run, const Value& t, Side side, const Value* chars) {
	run.spend_chars(t.size);
	if (!chars) return strip(t, side);
	return strip_if(t, side, [&](std::string_view c) {
		run.spend_search(chars->size);
		return chars->str().find(c) != std::string_view::npos;
	});
}

Value replace(Run& run, const Value& t, std::string_view what, const Value& with, int64_t count) {
	run.spend_search(t.size);
	TextBuilder out(run);
	const bool subject_data = tainted(t);
	// if the conversation's text causes an insertion, the inserted text counts as the conversation's
	const auto add_new = [&](bool data) {
		if (data)
			out.add(with.str(), true);
		else
			out.add(with);
	};
	size_t done = 0;
	while (count != 0) {
		run.spend();
		size_t at = find_text(t.str(), what, done);
		if (at == t.str().npos) break;
		if (what.empty()) { // inserts between all characters and at both ends
			add_new(subject_data);
			if (done == t.size) return out.take();
			const size_t n = char_offset(t.str().substr(done), 1);
			out.add(part(t, done, n));
			done += n;
		} else {
			out.add(part(t, done, at - done));
			add_new(tainted(part(t, at, what.size())));
			done = at + what.size();
		}
		if (count > 0) --count;
	}
	out.add(part(t, done, t.size - done));
	return out.take();
}

namespace {

// Splits at runs of white space, from the left.
std::vector<Value> split_words(Run& run, const Value& t, int64_t max) {
	std::vector<Value> out;
	const std::string_view s = t.str();
	size_t at = 0;
	while (true) {
		size_t start = at, probe = at;
		while (probe < s.size() && is_space(next_char(s, probe))) start = probe;
		if (start >= s.size()) return out;
		run.spend();
		if (max >= 0 && int64_t(out.size()) == max) {
			out.push_back(part(t, start, s.size() - start));
			return out;
		}
		size_t end = start;
		for (probe = start; probe < s.size() && !is_space(next_char(s, probe));) end = probe;
		out.push_back(part(t, start, end - start));
		at = end;
	}
}

std::vector<Value> rsplit_words(Run& run, const Value& t, int64_t max) {
	std::vector<Value> out;
	Value rest = strip(t, Side::Right);
	while (rest.size > 0) {
		run.spend();
		if (max >= 0 && int64_t(out.size()) == max) {
			out.push_back(rest);
			break;
		}
		const std::string_view s = rest.str();
		size_t start = s.size();
		for (size_t from = s.size(); from > 0;) {
			size_t at = from - 1;
			while (at > 0 && (uint8_t(s[at]) & 0xc0) == 0x80) --at;
			size_t behind = at;
			if (is_space(next_char(s, behind))) break;
			start = from = at;
		}
		out.push_back(part(rest, start, s.size() - start));
		rest = strip(part(rest, 0, start), Side::Right);
	}
	std::reverse(out.begin(), out.end());
	return out;
}

} // namespace

std::vector<Value> split(Run& run, const Value& t, const Value* separator, int64_t max, bool from_right) {
	run.spend_chars(t.size);
	if (!separator) return from_right ? rsplit_words(run, t, max) : split_words(run, t, max);
	const std::string_view sep = separator->str();
	std::vector<Value> out;
	if (sep.empty()) run.fail("split: the separator is empty");
	if (!from_right) {
		size_t done = 0;
		while (max < 0 || int64_t(out.size()) < max) {
			const size_t at = find_text(t.str(), sep, done);
			if (at == t.str().npos) break;
			run.spend();
			out.push_back(part(t, done, at - done));
			done = at + sep.size();
		}
		out.push_back(part(t, done, t.size - done));
		return out;
	}
	const std::string back(t.str().rbegin(), t.str().rend()), back_sep(sep.rbegin(), sep.rend());
	size_t done = 0; // positions are counted from the end here
	while (max < 0 || int64_t(out.size()) < max) {
		const size_t at = find_text(back, back_sep, done);
		if (at == back.npos) break;
		run.spend();
		out.push_back(part(t, t.size - at, at - done));
		done = at + sep.size();
	}
	out.push_back(part(t, 0, t.size - done));
	std::reverse(out.begin(), out.end());
	return out;
}

std::vector<Value> split_lines(Run& run, const Value& t, bool keep_ends) {
	const auto ends_line = [](char32_t c) {
		return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
	};
	run.spend_chars(t.size);
	std::vector<Value> out;
	const std::string_view s = t.str();
	size_t start = 0;
	for (size_t at = 0; at < s.size();) {
		const size_t end = at;
		if (!ends_line(next_char(s, at))) continue;
		if (s[end] == '\r' && at < s.size() && s[at] == '\n') ++at;
		run.spend();
		out.push_back(part(t, start, (keep_ends ? at : end) - start));
		start = at;
	}
	if (start < s.size()) out.push_back(part(t, start, s.size() - start));
	return out;
}

Value escape_html(Run& run, const Value& t) {
	run.spend_chars(t.size);
	TextBuilder out(run);
	size_t done = 0;
	for (size_t i = 0; i < t.size; ++i) {
		const char* entity = nullptr;
		switch (t.text[i]) {
		case '&': entity = "&amp;"; break;
		case '<': entity = "&lt;"; break;
		case '>': entity = "&gt;"; break;
		case '\'': entity = "&#39;"; break;
		case '"': entity = "&#34;"; break;
		default: continue;
		}
		out.add(part(t, done, i - done));
		out.add(entity, mark_at(t, i));
		done = i + 1;
	}
	out.add(part(t, done, t.size - done));
	Value v = out.take();
	v.markup = true;
	return v;
}

Value pad(Run& run, const Value& t, int64_t width, Side text_at, const Value& fill) {
	run.spend_bytes(t.size);
	const int64_t n = int64_t(char_count(t.str()));
	if (width <= n) return t;
	const size_t all = size_t(width - n);
	// as in CPython's center(): the odd space goes left if the width is odd
	const size_t left = text_at == Side::Left ? 0 : text_at == Side::Right ? all : all / 2 + (all & size_t(width) & 1);
	TextBuilder out(run);
	out.add_times(fill, left);
	out.add(t);
	out.add_times(fill, all - left);
	return out.take();
}

} // namespace kvrun::jinja
