// A grammar as rules, with limits on its size.
#include "models/grammar/rules.h"
#include "engine/core/error.h"
#include <algorithm>

namespace kvrun::grammar {

std::vector<CharRange> tidy_ranges(std::vector<CharRange> given, bool inverted) {
	std::ranges::sort(given, {}, &CharRange::first);
	std::vector<CharRange> joined;
	for (const CharRange& r : given) {
		if (!joined.empty() && r.first <= joined.back().last + 1)
			joined.back().last = std::max(joined.back().last, r.last);
		else
			joined.push_back(r);
	}
	if (inverted) {
		std::vector<CharRange> others;
		uint32_t next = 0;
		for (const CharRange& r : joined) {
			if (r.first > next) others.push_back({next, r.first - 1});
			next = r.last + 1;
		}
		if (next <= kLastChar) others.push_back({next, kLastChar});
		joined = std::move(others);
	}
	std::vector<CharRange> out;
	for (const CharRange& r : joined) {
		constexpr uint32_t low = 0xd800, high = 0xdfff; // surrogates
		if (r.last < low || r.first > high) {
			out.push_back(r);
			continue;
		}
		if (r.first < low) out.push_back({r.first, low - 1});
		if (r.last > high) out.push_back({high + 1, r.last});
	}
	return out;
}

ExprId Rules::add(Expr e) {
	bytes_ += e.text.size() + e.ranges.size() * sizeof(CharRange) + e.parts.size() * sizeof(ExprId);
	if (exprs_.size() >= kMostExprs || bytes_ > kMostBytes)
		fail(Code::Unsupported, "the grammar is too large: more than {} parts or {} MiB", kMostExprs, kMostBytes >> 20);
	exprs_.push_back(std::move(e));
	return ExprId(exprs_.size() - 1);
}

ExprId Rules::text(std::string_view bytes) {
	Expr e;
	e.kind = Expr::Kind::Text;
	e.text = bytes;
	return add(std::move(e));
}

ExprId Rules::chars(std::vector<CharRange> ranges, bool inverted) {
	Expr e;
	e.kind = Expr::Kind::Chars;
	e.ranges = tidy_ranges(std::move(ranges), inverted);
	return add(std::move(e));
}

ExprId Rules::sequence(std::vector<ExprId> parts) {
	if (parts.size() == 1) return parts[0];
	Expr e;
	e.parts = std::move(parts);
	return add(std::move(e));
}

ExprId Rules::choice(std::vector<ExprId> parts) {
	KV_ASSERT(!parts.empty());
	if (parts.size() == 1) return parts[0];
	Expr e;
	e.kind = Expr::Kind::Choice;
	e.parts = std::move(parts);
	return add(std::move(e));
}

ExprId Rules::repeat(ExprId what, uint32_t least, uint32_t most) {
	if (least > kMostRepeats || (most != kNoLimit && most > kMostRepeats))
		fail(Code::Unsupported, "the grammar is too large: a repetition of more than {} times", kMostRepeats);
	Expr e;
	e.kind = Expr::Kind::Repeat;
	e.parts = {what};
	e.least = least, e.most = most;
	return add(std::move(e));
}

ExprId Rules::rule(RuleId r) {
	KV_ASSERT(r < rules_.size());
	Expr e;
	e.kind = Expr::Kind::Rule;
	e.rule = r;
	return add(std::move(e));
}

RuleId Rules::add_rule(std::string name) {
	if (rules_.size() >= kMostRules) fail(Code::Unsupported, "the grammar has more than {} rules", kMostRules);
	rules_.push_back({std::move(name)});
	return RuleId(rules_.size() - 1);
}

void Rules::set_body(RuleId r, ExprId e) { rules_[r].body = e; }

} // namespace kvrun::grammar
