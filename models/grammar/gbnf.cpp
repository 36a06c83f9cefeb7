// Recursive-descent parser of grammars in GBNF.
#include "models/grammar/gbnf.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/grammar/text_reader.h"
#include <algorithm>
#include <map>

namespace kvrun::grammar {
namespace {

constexpr size_t kMostText = 1 << 20; // bytes of a grammar
constexpr int kDeepestGroup = 100;    // nesting of groups

class Parser : TextReader {
 public:
	Parser(std::string_view text, const std::function<std::string(std::string_view)>& token)
	    : TextReader(text), token_(token) {}

	Rules parse() {
		if (text_.size() > kMostText) fail(Code::Unsupported, "the grammar has more than {} bytes", kMostText);
		for (space(true); !end(); space(true)) rule();
		const auto root = rules_of_.find("root");
		if (root == rules_of_.end() || !rules_.has_body(root->second))
			fail(Code::Format, "the grammar has no rule named root, which is where it begins");
		rules_.set_root(root->second);
		return std::move(rules_);
	}

 private:
	[[noreturn]] void refuse(const std::string& expected) const {
		const std::string_view before = text_.substr(0, at_);
		const size_t line = size_t(std::ranges::count(before, '\n')) + 1;
		const size_t column = at_ - (before.rfind('\n') + 1) + 1;
		fail(Code::Format, "the grammar is wrong at line {}, column {}: expected {}, not {}", line, column, expected,
		     end() ? "its end" : "'" + one_line(text_.substr(at_, 20), 20) + "'");
	}
	void space(bool lines) {
		while (!end()) {
			const char c = peek();
			if (c == '#')
				while (!end() && peek() != '\n') ++at_;
			else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n'))
				++at_;
			else
				return;
		}
	}
	static bool in_name(char c) {
		return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
	}
	std::string name() {
		const size_t from = at_;
		while (in_name(peek())) ++at_;
		if (at_ == from) refuse("a name");
		return std::string(text_.substr(from, at_ - from));
	}
	RuleId rule_of(const std::string& name) {
		const auto [at, fresh] = rules_of_.try_emplace(name, 0);
		if (fresh) at->second = rules_.add_rule(name);
		return at->second;
	}

	void rule() {
		const RuleId r = rule_of(name());
		space(false);
		if (!take("::=")) refuse("::=");
		if (rules_.has_body(r)) refuse("a rule that is not there yet: " + one_line(rules_.name(r), 40) + " is");
		space(true);
		rules_.set_body(r, choice(0));
		space(false);
		if (!end() && peek() != '\n') refuse("the end of a rule");
	}

	ExprId choice(int depth) {
		std::vector<ExprId> parts{sequence(depth)};
		for (;;) {
			const size_t before = at_;
			space(true); // the next line may continue the rule with |
			if (!take("|")) {
				if (depth == 0) at_ = before;
				return rules_.choice(std::move(parts));
			}
			space(true);
			parts.push_back(sequence(depth));
		}
	}

	ExprId sequence(int depth) {
		std::vector<ExprId> parts;
		for (;;) {
			space(depth > 0);
			const char c = peek();
			if (end() || c == '|' || c == ')' || c == '\n') break;
			parts.push_back(repeated(one(depth)));
		}
		return rules_.sequence(std::move(parts));
	}

	ExprId one(int depth) {
		if (take("\"")) return text();
		if (take("[")) return chars();
		if (take(".")) return rules_.chars({}, /*inverted=*/true);
		if (take("<")) {
			const size_t close = text_.find_first_of(">\n\r", at_); // a name has no line break
			if (close == text_.npos || close == at_ || text_[close] != '>') refuse("the name of a token and >");
			const std::string_view token = text_.substr(at_ - 1, close - at_ + 2);
			at_ = close + 1;
			return rules_.text(token_(token));
		}
		if (take("!<"))
			fail(Code::Unsupported, "the grammar has !<..>, any other token, which is not supported; write [^<] or .");
		if (take("(")) {
			if (depth >= kDeepestGroup)
				fail(Code::Unsupported, "the grammar has more than {} groups inside each other", kDeepestGroup);
			const ExprId e = choice(depth + 1);
			space(true);
			if (!take(")")) refuse(")");
			return e;
		}
		if (in_name(peek())) return rules_.rule(rule_of(name()));
		refuse("a text, characters, a rule, a token or a group");
	}

	uint32_t number() {
		const auto n = read_number();
		if (!n) refuse("a number");
		return *n;
	}

	ExprId repeated(ExprId e) {
		for (;;) {
			if (take("*")) {
				e = rules_.repeat(e, 0);
			} else if (take("+")) {
				e = rules_.repeat(e, 1);
			} else if (take("?")) {
				e = rules_.optional(e);
			} else if (take("{")) {
				space(false);
				const uint32_t least = peek() == ',' ? 0 : number();
				uint32_t most = least;
				space(false);
				if (take(",")) {
					space(false);
					most = peek() == '}' ? kNoLimit : number();
				}
				space(false);
				if (most < least) refuse("a number that is not less than " + std::to_string(least));
				if (!take("}")) refuse("}");
				e = rules_.repeat(e, least, most);
			} else {
				return e;
			}
		}
	}

	uint32_t hex(int digits) {
		const auto n = read_hex(digits);
		if (!n) refuse(std::to_string(digits) + " hexadecimal digits");
		if (*n > kLastChar || (*n >= 0xd800 && *n <= 0xdfff)) refuse("a character that Unicode has before it");
		return *n;
	}

	// One character or escape.
	uint32_t character() {
		if (end()) refuse("a character");
		if (take("\\")) {
			const char c = peek();
			++at_;
			switch (c) {
			case 'n': return '\n';
			case 'r': return '\r';
			case 't': return '\t';
			case 'x': return hex(2);
			case 'u': return hex(4);
			case 'U': return hex(8);
			case '\\':
			case '"':
			case '[':
			case ']':
			case '-':
			case '^':
			case '/': return uint8_t(c);
			default: --at_; refuse("an escape: n r t x u U \\ \" [ ] - ^ /");
			}
		}
		const auto c = read_character();
		if (!c) refuse("UTF-8");
		return *c;
	}

	ExprId text() {
		std::string out;
		while (!take("\"")) {
			if (end() || peek() == '\n') refuse("\"");
			append_utf8(out, character());
		}
		return rules_.text(out);
	}

	ExprId chars() {
		const bool inverted = take("^");
		std::vector<CharRange> ranges;
		while (!take("]")) {
			if (end() || peek() == '\n') refuse("]");
			const uint32_t first = character();
			uint32_t last = first;
			if (range_follows()) {
				++at_;
				last = character();
				if (last < first) refuse("a range of characters in their order");
			}
			ranges.push_back({first, last});
		}
		if (ranges.empty() && !inverted) refuse("a character before ]");
		return rules_.chars(std::move(ranges), inverted);
	}

	static void append_utf8(std::string& out, uint32_t c) {
		if (c < 0x80)
			out += char(c);
		else if (c < 0x800)
			(out += char(0xc0 | c >> 6)) += char(0x80 | (c & 63));
		else if (c < 0x10000)
			((out += char(0xe0 | c >> 12)) += char(0x80 | (c >> 6 & 63))) += char(0x80 | (c & 63));
		else
			(((out += char(0xf0 | c >> 18)) += char(0x80 | (c >> 12 & 63))) += char(0x80 | (c >> 6 & 63))) +=
			    char(0x80 | (c & 63));
	}

	const std::function<std::string(std::string_view)>& token_;
	Rules rules_;
	std::map<std::string, RuleId> rules_of_;
};

} // namespace

Rules parse_gbnf(std::string_view text, const std::function<std::string(std::string_view)>& token) {
	return Parser(text, token).parse();
}

} // namespace kvrun::grammar
