// A grammar as rules: the output of the parsers of grammars and schemas, the input of Automaton.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::grammar {

struct CharRange { // of code points, both ends included
	uint32_t first, last;
};
constexpr uint32_t kLastChar = 0x10ffff;
constexpr uint32_t kNoLimit = UINT32_MAX; // of repetitions: no upper limit

// Makes ranges ascending and disjoint, without surrogates, which UTF-8 cannot encode. inverted: all other characters.
std::vector<CharRange> tidy_ranges(std::vector<CharRange>, bool inverted);

using ExprId = uint32_t;
using RuleId = uint32_t;

struct Expr {
	enum class Kind : uint8_t {
		Text,     // bytes
		Chars,    // one character of `ranges`
		Sequence, // `parts` in order; none: the empty text
		Choice,   // one of `parts`
		Repeat,   // parts[0], `least` to `most` times
		Rule,     // a call of rule number `rule`
	};
	Kind kind = Kind::Sequence;
	std::string text;
	std::vector<CharRange> ranges;
	std::vector<ExprId> parts;
	uint32_t least = 0, most = 0;
	RuleId rule = 0;
};

// Expressions may be shared. Throws Error{Unsupported} if a grammar becomes too large.
class Rules {
 public:
	static constexpr size_t kMostRules = 10'000, kMostExprs = 200'000, kMostBytes = 4 << 20;
	static constexpr uint32_t kMostRepeats = 100'000;

	ExprId text(std::string_view bytes);
	ExprId chars(std::vector<CharRange>, bool inverted = false);
	ExprId sequence(std::vector<ExprId>);
	ExprId choice(std::vector<ExprId>); // at least one part
	ExprId repeat(ExprId, uint32_t least, uint32_t most = kNoLimit);
	ExprId optional(ExprId e) { return repeat(e, 0, 1); }
	ExprId rule(RuleId);

	RuleId add_rule(std::string name); // without a body: see set_body()
	void set_body(RuleId, ExprId);
	void set_root(RuleId r) { root_ = r; }

	RuleId root() const { return root_; }
	size_t n_rules() const { return rules_.size(); }
	const std::string& name(RuleId r) const { return rules_[r].name; }
	bool has_body(RuleId r) const { return rules_[r].body != kNone; }
	ExprId body(RuleId r) const { return rules_[r].body; }
	const Expr& expr(ExprId e) const { return exprs_[e]; }

 private:
	static constexpr ExprId kNone = UINT32_MAX;
	struct Rule {
		std::string name;
		ExprId body = kNone;
	};
	ExprId add(Expr);
	std::vector<Rule> rules_;
	std::vector<Expr> exprs_;
	size_t bytes_ = 0;
	RuleId root_ = 0;
};

} // namespace kvrun::grammar
