// Recursive-descent parser of regular expressions in JSON schemas.
#include "models/grammar/pattern.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/grammar/text_reader.h"
#include <algorithm>

namespace kvrun::grammar {
namespace {

constexpr size_t kLongest = 4096;  // bytes of a pattern
constexpr int kDeepestGroups = 50; // nesting of groups

class Pattern : TextReader {
 public:
	Pattern(Rules& r, JsonText& j, std::string_view s) : TextReader(s), rules_(r), json_(j) {}

	ExprId parse() {
		if (text_.size() > kLongest) unsupported("more than " + std::to_string(kLongest) + " bytes");
		return choice(0, true);
	}

 private:
	[[noreturn]] void unsupported(const std::string& what) const {
		fail(Code::Unsupported, "the pattern '{}' has {}, which is not supported", one_line(text_, 60), what);
	}
	[[noreturn]] void wrong(const std::string& what) const {
		fail(Code::Format, "the pattern '{}' is wrong at byte {}: {}", one_line(text_, 60), at_, what);
	}
	ExprId anything() { return rules_.repeat(json_.characters({{0, kLastChar}}), 0); }

	// `outer`: outside groups, or inside a group that is the whole pattern.
	ExprId choice(int depth, bool outer) {
		std::vector<ExprId> parts;
		do parts.push_back(sequence(depth, outer));
		while (take("|"));
		return rules_.choice(std::move(parts));
	}

	// Whether the group that begins here is the rest of the pattern: then ^ and $ in its branches anchor the string.
	bool is_all(size_t from) const {
		int open = 0;
		bool in_class = false;
		for (size_t i = from; i < text_.size(); ++i) {
			const char c = text_[i];
			if (c == '\\') {
				++i;
			} else if (in_class) {
				in_class = c != ']';
			} else if (c == '[') {
				in_class = true;
			} else if (c == '(') {
				++open;
			} else if (c == ')' && --open == 0) {
				return i + 1 == text_.size();
			}
		}
		return false;
	}

	ExprId sequence(int depth, bool outer) {
		std::vector<ExprId> parts;
		bool held = !outer; // anchored to what precedes it
		bool closed = !outer;
		if (outer && peek() == '(' && is_all(at_)) {
			ExprId group = 0;
			if (take_group(depth, /*outer=*/true, group)) return group;
		}
		if (outer && take("^")) held = true;
		if (!held) parts.push_back(anything());
		while (!end() && peek() != '|' && peek() != ')') {
			if (peek() == '$') {
				if (!outer || (at_ + 1 < text_.size() && text_[at_ + 1] != '|' && text_[at_ + 1] != ')'))
					unsupported("$ before its end");
				++at_;
				closed = true;
				break;
			}
			if (peek() == '^') unsupported("^ behind its beginning");
			parts.push_back(repeated(one(depth)));
		}
		if (!closed) parts.push_back(anything());
		return rules_.sequence(std::move(parts));
	}

	// Reads a group. With `outer`, returns false and reads nothing if the group is repeated.
	bool take_group(int depth, bool outer, ExprId& out) {
		if (depth >= kDeepestGroups) unsupported("groups more than " + std::to_string(kDeepestGroups) + " deep");
		take("(");
		if (take("?")) {
			if (take("<")) {
				if (peek() == '=' || peek() == '!') unsupported("(?<" + std::string(1, peek()));
				const size_t close = text_.find('>', at_);
				if (close == text_.npos) wrong("the name of a group has no end");
				at_ = close + 1;
			} else if (!take(":")) {
				unsupported("(?" + one_line(std::string(1, peek())));
			}
		}
		out = choice(depth + 1, outer);
		if (!take(")")) wrong("a group has no end");
		return true;
	}

	uint32_t character() {
		const auto c = read_character();
		if (!c) wrong("it is not UTF-8");
		return *c;
	}

	uint32_t hex(int digits) {
		const auto n = read_hex(digits);
		if (!n) wrong("expected " + std::to_string(digits) + " hexadecimal digits");
		return *n;
	}

	// After a backslash: the characters of a class such as \d, or one character.
	std::vector<CharRange> escape() {
		if (end()) wrong("it ends with a backslash");
		const std::vector<CharRange> digits{{'0', '9'}}, words{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
		    spaces{{9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
		           {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
		const auto one = [](uint32_t c) { return std::vector<CharRange>{{c, c}}; };
		const char c = peek();
		if (uint8_t(c) >= 0x80) return one(character());
		++at_;
		switch (c) {
		case 'd': return digits;
		case 'D': return tidy_ranges(digits, true);
		case 'w': return words;
		case 'W': return tidy_ranges(words, true);
		case 's': return spaces;
		case 'S': return tidy_ranges(spaces, true);
		case 'n': return one('\n');
		case 'r': return one('\r');
		case 't': return one('\t');
		case 'f': return one('\f');
		case 'v': return one('\v');
		case 'x': return one(hex(2));
		case 'u': {
			if (peek() == '{') unsupported("\\u{");
			const uint32_t u = hex(4);
			if (u >= 0xd800 && u <= 0xdfff) unsupported("a surrogate");
			return one(u);
		}
		case '0': return one(0);
		default: break;
		}
		if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9'))
			unsupported("\\" + std::string(1, c));
		return one(uint8_t(c));
	}

	// A character inside [ ], or several if it is an escape such as \d.
	std::vector<CharRange> class_part() {
		if (take("\\")) return take("b") ? std::vector<CharRange>{{8, 8}} : escape();
		const uint32_t c = character();
		return {{c, c}};
	}

	std::vector<CharRange> char_class() {
		const bool inverted = take("^");
		std::vector<CharRange> ranges;
		while (!take("]")) {
			if (end()) wrong("[ has no ]");
			std::vector<CharRange> part = class_part();
			if (range_follows()) {
				take("-");
				const std::vector<CharRange> last = class_part();
				const auto single = [](const std::vector<CharRange>& r) {
					return r.size() == 1 && r[0].first == r[0].last;
				};
				if (!single(part) || !single(last) || last[0].first < part[0].first) wrong("a range is out of order");
				part[0].last = last[0].last;
			}
			ranges.insert(ranges.end(), part.begin(), part.end());
		}
		return tidy_ranges(std::move(ranges), inverted);
	}

	ExprId one(int depth) {
		if (peek() == '(') {
			ExprId group = 0;
			take_group(depth, /*outer=*/false, group);
			return group;
		}
		if (take("[")) return json_.characters(char_class());
		if (take("\\")) return json_.characters(escape());
		if (take(".")) return json_.characters(tidy_ranges({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}, true));
		if (peek() == '*' || peek() == '+' || peek() == '?') wrong("nothing stands before " + std::string(1, peek()));
		const uint32_t c = character();
		return json_.characters({{c, c}});
	}

	ExprId repeated(ExprId e) {
		const size_t from = at_;
		if (take("*")) {
			e = rules_.repeat(e, 0);
		} else if (take("+")) {
			e = rules_.repeat(e, 1);
		} else if (take("?")) {
			e = rules_.optional(e);
		} else if (take("{")) {
			const auto least = read_number();
			auto most = least;
			if (take(",")) most = peek() == '}' ? std::optional(kNoLimit) : read_number();
			if (!least || !most || *most < *least || !take("}")) at_ = from, wrong("{ is no repetition");
			e = rules_.repeat(e, *least, *most);
		} else {
			return e;
		}
		take("?"); // laziness changes which match is found, not whether there is one
		if (peek() == '*' || peek() == '+' || peek() == '{') wrong("a repetition of a repetition");
		return e;
	}

	Rules& rules_;
	JsonText& json_;
};

} // namespace

ExprId pattern_text(Rules& r, JsonText& j, std::string_view pattern) { return Pattern(r, j, pattern).parse(); }

} // namespace kvrun::grammar
