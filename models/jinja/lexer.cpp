// Splits a template into tokens.
#include "models/jinja/lexer.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/jinja/lib/text.h"
#include <algorithm>
#include <charconv>

namespace kvrun::jinja {

void fail_syntax(const Source& source, uint32_t line, const std::string& what) {
	throw Error(Code::Format, fmt::format("{}, line {}: {}; --chat-template NAME takes another template", source.name,
	                                      line, one_line(what, 400)));
}

namespace {

class Lexer {
 public:
	explicit Lexer(Source& source) : source_(source), s_(source.text) {}

	std::vector<Token> run() {
		while (at_ < s_.size()) data();
		push(Token::End);
		return std::move(tokens_);
	}

 private:
	[[noreturn]] void fail(const std::string& what) const { fail_syntax(source_, line_, what); }
	Token& push(Token::Type type, std::string_view text = {}) {
		Token t;
		t.type = type;
		t.line = line_;
		t.text = text;
		return tokens_.emplace_back(t);
	}
	bool has(std::string_view what, size_t at) const { return s_.compare(at, what.size(), what) == 0; }
	size_t skip_space(size_t at) const {
		for (size_t next = at; next < s_.size() && is_space(next_char(s_, next));) at = next;
		return at;
	}
	void advance(size_t to) {
		line_ += uint32_t(std::count(s_.begin() + std::ptrdiff_t(at_), s_.begin() + std::ptrdiff_t(to), '\n'));
		line_start_ = to > at_ ? s_[to - 1] == '\n' : line_start_;
		at_ = to;
	}
	// Position of the text after the end of a tag at `at` ("%}", "-%}", "+%}"); 0: no end there.
	size_t tag_end(size_t at, std::string_view end, bool trims_newline) const;
	bool raw_begin(size_t at, size_t& behind) const;
	void push_data(std::string_view text, char sign, bool tag_is_variable);
	void data();
	void comment();
	void raw();
	void code(std::string_view end);
	void code_token();
	void number();
	void name();
	void text();
	void unescape(std::string_view inside);
	char32_t hex_escape(std::string_view s, size_t& at, size_t digits);
	void op();

	Source& source_;
	std::string_view s_;
	size_t at_ = 0;
	uint32_t line_ = 1;
	bool line_start_ = true; // the next character begins a line
	std::string open_;       // open brackets
	std::vector<Token> tokens_;
};

size_t Lexer::tag_end(size_t at, std::string_view end, bool trims_newline) const {
	if (has("-", at) && has(end, at + 1)) return skip_space(at + 1 + end.size());
	if (trims_newline && has("+", at) && has(end, at + 1)) return at + 1 + end.size();
	if (!has(end, at)) return 0;
	at += end.size();
	return trims_newline && has("\n", at) ? at + 1 : at;
}

// {% raw %} with any signs; trim_blocks does not apply to it.
bool Lexer::raw_begin(size_t at, size_t& behind) const {
	at += 2;
	if (has("-", at) || has("+", at)) ++at;
	at = skip_space(at);
	if (!has("raw", at)) return false;
	at = skip_space(at + 3);
	if (has("-%}", at))
		behind = skip_space(at + 3);
	else if (has("%}", at))
		behind = at + 2;
	else
		return false;
	return true;
}

// Adds text before a tag that begins with `sign`; white space at its end may be dropped.
void Lexer::push_data(std::string_view text, char sign, bool tag_is_variable) {
	if (sign == '-') {
		const Value all = jinja::text(text);
		text = strip(all, Side::Right).str();
	} else if (sign != '+' && !tag_is_variable) {
		const size_t newline = text.rfind('\n');
		const size_t start = newline == text.npos ? 0 : newline + 1;
		const bool blank = strip(jinja::text(text.substr(start)), Side::Both).size == 0;
		if ((start > 0 || line_start_) && blank) text = text.substr(0, start);
	}
	if (!text.empty()) push(Token::Data, text);
}

void Lexer::data() {
	size_t tag = at_;
	do {
		tag = s_.find('{', tag);
	} while (tag != s_.npos && !has("{%", tag) && !has("{{", tag) && !has("{#", tag) && ++tag > 0);
	if (tag == s_.npos) {
		push(Token::Data, s_.substr(at_));
		return advance(s_.size());
	}
	const std::string_view before = s_.substr(at_, tag - at_);
	const char kind = s_[tag + 1], sign = tag + 2 < s_.size() ? s_[tag + 2] : ' ';
	push_data(before, sign, kind == '{');
	const size_t inside = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
	size_t behind = 0;
	if (kind == '%' && raw_begin(tag, behind)) {
		advance(behind);
		return raw();
	}
	advance(inside);
	if (kind == '#') return comment();
	push(kind == '{' ? Token::VariableBegin : Token::BlockBegin);
	code(kind == '{' ? "}}" : "%}");
}

void Lexer::comment() {
	const size_t at = s_.find("#}", at_);
	if (at == s_.npos) fail("a comment has no end; close it with #}");
	const bool has_sign = at > at_ && (s_[at - 1] == '-' || s_[at - 1] == '+');
	advance(tag_end(has_sign ? at - 1 : at, "#}", true));
}

void Lexer::raw() {
	for (size_t at = at_; (at = s_.find("{%", at)) != s_.npos; ++at) {
		size_t end = at + 2;
		const char sign = end < s_.size() ? s_[end] : ' ';
		if (sign == '-' || sign == '+') ++end;
		end = skip_space(end);
		if (!has("endraw", end)) continue;
		const size_t behind = tag_end(skip_space(end + 6), "%}", true);
		if (behind == 0) continue;
		push_data(s_.substr(at_, at - at_), sign, false);
		return advance(behind);
	}
	fail("a raw block has no end; close it with {% endraw %}");
}

// The tokens inside a tag, up to its end.
void Lexer::code(std::string_view end) {
	const bool block = end == "%}";
	open_.clear();
	while (at_ < s_.size()) {
		const size_t behind = open_.empty() ? tag_end(at_, end, block) : 0;
		if (behind > 0) {
			push(block ? Token::BlockEnd : Token::VariableEnd);
			return advance(behind);
		}
		const size_t next = skip_space(at_);
		if (next > at_)
			advance(next);
		else
			code_token();
	}
	fail(fmt::format("a tag has no end; close it with {}", end));
}

void Lexer::code_token() {
	const char c = s_[at_];
	if (c >= '0' && c <= '9') return number();
	size_t next = at_;
	if (is_word(next_char(s_, next))) return name();
	if (c == '\'' || c == '"') return text();
	op();
}

void Lexer::number() {
	// digits with single underscores between them
	const auto digits = [&](size_t at, auto&& is) {
		size_t end = at;
		while (end < s_.size() &&
		       (is(s_[end]) || (s_[end] == '_' && end > at && end + 1 < s_.size() && is(s_[end + 1]))))
			++end;
		return end;
	};
	const auto decimal = [](char c) { return c >= '0' && c <= '9'; };
	const auto finish = [&](size_t end) {
		std::string clean;
		for (char c : s_.substr(at_, end - at_))
			if (c != '_') clean += c;
		return clean;
	};
	const bool after_dot = at_ > 0 && s_[at_ - 1] == '.';
	const size_t whole = digits(at_, decimal);
	if (!after_dot) {
		size_t end = whole;
		if (has(".", end)) {
			const size_t fraction = digits(end + 1, decimal);
			if (fraction > end + 1) end = fraction;
		}
		if (has("e", end) || has("E", end)) {
			const size_t exponent = end + 1 + (has("+", end + 1) || has("-", end + 1) ? 1 : 0);
			const size_t stop = digits(exponent, decimal);
			if (stop > exponent) end = stop;
		}
		if (end > whole) {
			const std::string clean = finish(end);
			Token& t = push(Token::Float);
			const auto [p, error] = std::from_chars(clean.data(), clean.data() + clean.size(), t.number);
			if (error != std::errc()) fail(fmt::format("the number {} is too large or too small", clean));
			return advance(end);
		}
	}
	int base = 10;
	size_t end = whole, from = 0;
	const auto prefixed = [&](const char* lower, const char* upper, int b, auto&& is) {
		if (!has(lower, at_) && !has(upper, at_)) return;
		const size_t start = at_ + 2 + (has("_", at_ + 2) ? 1 : 0), stop = digits(start, is);
		if (stop > start) base = b, end = stop, from = 2;
	};
	prefixed("0x", "0X", 16, [&](char c) { return decimal(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); });
	prefixed("0o", "0O", 8, [](char c) { return c >= '0' && c <= '7'; });
	prefixed("0b", "0B", 2, [](char c) { return c == '0' || c == '1'; });
	if (base == 10 && s_[at_] == '0') // a decimal number with a leading zero has only zeros
		end = digits(at_, [](char c) { return c == '0'; });
	const std::string clean = finish(end).substr(from);
	Token& t = push(Token::Int);
	const auto [p, error] = std::from_chars(clean.data(), clean.data() + clean.size(), t.integer, base);
	if (error != std::errc()) fail(fmt::format("the number {} has more than 64 bits", clean));
	advance(end);
}

void Lexer::name() {
	size_t end = at_;
	for (size_t next = at_; next < s_.size() && is_word(next_char(s_, next));) end = next;
	push(Token::Name, s_.substr(at_, end - at_));
	advance(end);
}

void Lexer::text() {
	const char quote = s_[at_];
	size_t end = at_ + 1;
	while (end < s_.size() && s_[end] != quote) end += s_[end] == '\\' ? 2 : 1;
	if (end >= s_.size()) fail("a text has no closing quote");
	unescape(s_.substr(at_ + 1, end - at_ - 1));
	advance(end + 1);
}

char32_t Lexer::hex_escape(std::string_view s, size_t& at, size_t digits) {
	uint32_t c = 0;
	const std::string_view hex = s.substr(at, digits);
	const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), c, 16);
	if (hex.size() < digits || error != std::errc() || end != hex.data() + digits)
		fail("an escape in a text needs more hexadecimal digits");
	if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		fail(fmt::format("a text has the escape U+{:04X}, which is no character", c));
	at += digits;
	return c;
}

// Python's escapes in text literals.
void Lexer::unescape(std::string_view in) {
	if (in.find('\\') == in.npos) {
		push(Token::Text, in);
		return;
	}
	std::string out;
	for (size_t at = 0; at < in.size();) {
		if (in[at] != '\\') {
			out += in[at++];
			continue;
		}
		const char c = in[++at]; // exists: a text does not end with a backslash
		++at;
		constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
		if (const size_t simple = kFrom.find(c); simple != kFrom.npos) {
			out += kTo[simple];
		} else if (c == '\n') { // line continuation
		} else if (c == 'x' || c == 'u' || c == 'U') {
			append_char(out, hex_escape(in, at, c == 'x' ? 2 : c == 'u' ? 4 : 8));
		} else if (c >= '0' && c <= '7') {
			uint32_t code = uint32_t(c - '0');
			for (int i = 0; i < 2 && at < in.size() && in[at] >= '0' && in[at] <= '7'; ++i)
				code = code * 8 + uint32_t(in[at++] - '0');
			append_char(out, code);
		} else if (c == 'N') {
			fail("a text names a character by \\N{...}; write \\u and its number");
		} else {
			(out += '\\') += c;
		}
	}
	push(Token::Text, source_.literals.emplace_back(std::move(out)));
}

void Lexer::op() {
	constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="}, kOne = "+-/*%~[](){}><=.:|,;";
	size_t n = 0;
	for (std::string_view two : kTwo)
		if (has(two, at_)) n = 2;
	if (n == 0 && kOne.find(s_[at_]) != kOne.npos) n = 1;
	size_t next = at_;
	next_char(s_, next);
	if (n == 0) fail(fmt::format("unexpected character '{}'", s_.substr(at_, next - at_)));
	const std::string_view text = s_.substr(at_, n);
	constexpr std::string_view kOpen = "([{", kClose = ")]}";
	if (const size_t i = kOpen.find(text[0]); n == 1 && i != kOpen.npos) {
		open_ += kClose[i];
	} else if (n == 1 && kClose.find(text[0]) != kClose.npos) {
		if (open_.empty() || open_.back() != text[0]) fail(fmt::format("unexpected '{}'", text));
		open_.pop_back();
	}
	push(Token::Operator, text);
	advance(at_ + n);
}

} // namespace

std::vector<Token> tokenize(Source& source) {
	std::string clean;
	clean.reserve(source.text.size());
	for (size_t i = 0; i < source.text.size(); ++i) {
		if (source.text[i] == '\r') {
			if (i + 1 < source.text.size() && source.text[i + 1] == '\n') ++i;
			clean += '\n';
		} else {
			clean += source.text[i];
		}
	}
	if (clean.ends_with('\n')) clean.pop_back();
	source.text = std::move(clean);
	return Lexer(source).run();
}

} // namespace kvrun::jinja
