// Numbers between limits as rules, digit by digit as long as the digits equal those of a limit.
#include "models/grammar/json_text.h"
#include <algorithm>
#include <charconv>

namespace kvrun::grammar {
namespace {

constexpr size_t kExactDigits = 15; // a double holds so many: no such decimal is rounded across a limit
const std::string kMostWhole(kExactDigits, '9');

using Maybe = std::optional<ExprId>; // nullopt: no text fits

class Digits {
 public:
	explicit Digits(Rules& r) : rules_(r) {}

	ExprId any(uint32_t least, uint32_t most) { return rules_.repeat(rules_.chars({{'0', '9'}}), least, most); }

	// Digit strings between limits of the same length n; nullptr: no limit.
	ExprId same_length(const char* low, const char* high, size_t n) {
		if (n == 0) return rules_.sequence({});
		if (!low && !high) return any(uint32_t(n), uint32_t(n));
		const char a = low ? *low : '0', b = high ? *high : '9';
		const auto then = [&](char from, char to, const char* lo, const char* hi) {
			return rules_.sequence({rules_.chars({{uint32_t(from), uint32_t(to)}}), same_length(lo, hi, n - 1)});
		};
		const char *low_rest = low ? low + 1 : nullptr, *high_rest = high ? high + 1 : nullptr;
		if (a == b) return then(a, a, low_rest, high_rest);
		std::vector<ExprId> parts;
		char first = a, last = b;
		if (low) parts.push_back(then(first++, a, low_rest, nullptr));
		if (high) parts.push_back(then(b, last--, nullptr, high_rest));
		if (first <= last) parts.push_back(then(first, last, nullptr, nullptr));
		return rules_.choice(std::move(parts));
	}

	// Whole numbers without a sign, as text without leading zeros.
	Maybe whole(const std::string& least, const std::string& most) {
		std::vector<ExprId> parts;
		for (size_t n = least.size(); n <= most.size(); ++n) {
			std::string low(n, '0'); // the smallest number of n digits
			low[0] = '1';
			if (n == least.size()) low = least;
			const std::string high = n == most.size() ? most : std::string(n, '9');
			if (low <= high) parts.push_back(same_length(low.c_str(), high.c_str(), n));
		}
		if (parts.empty()) return {};
		return rules_.choice(std::move(parts));
	}

	struct Limit {
		std::string digits = {}; // after the point, without trailing zeros
		bool excluded = false;
	};
	using Bound = std::optional<Limit>;

	// Zero or more digits after a point, between limits.
	Maybe fraction(const Bound& low, const Bound& high, uint32_t more) {
		if (!low && !high) return any(0, more);
		const bool may_end =
		    (!low || (low->digits.empty() && !low->excluded)) && (!high || !high->digits.empty() || !high->excluded);
		std::vector<ExprId> parts;
		if (may_end) parts.push_back(rules_.sequence({}));
		if (const Maybe next = digit(low, high, more)) parts.push_back(*next);
		if (parts.empty()) return {};
		return rules_.choice(std::move(parts));
	}
	// At least one digit.
	Maybe digit(const Bound& low, const Bound& high, uint32_t more) {
		const bool zeros = (!low || low->digits.empty()) && (!high || high->digits.empty());
		if (zeros && more == 0) return {};
		std::vector<ExprId> parts;
		for (char d = '0'; d <= '9'; ++d) {
			const auto rest = [d](const Bound& b, bool is_low) -> std::optional<Bound> { // nullopt: outside it
				if (!b) return Bound();
				const char at = b->digits.empty() ? '0' : b->digits[0];
				if (d == at) return Bound({b->digits.empty() ? "" : b->digits.substr(1), b->excluded});
				if ((d < at) == is_low) return {};
				return Bound();
			};
			const auto lo = rest(low, true), hi = rest(high, false);
			if (!lo || !hi) continue;
			const uint32_t left = zeros ? more - 1 : more;
			if (const Maybe then = fraction(*lo, *hi, left))
				parts.push_back(rules_.sequence({rules_.text(std::string(1, d)), *then}));
		}
		if (parts.empty()) return {};
		return rules_.choice(std::move(parts));
	}

	// A number without a sign: whole part and fraction.
	struct Decimal {
		std::string whole = "0";
		Limit fraction = {};
	};
	Maybe between(const Decimal& low, const std::optional<Decimal>& high) {
		const std::string& last = high ? high->whole : kMostWhole;
		const size_t longest = std::max({last.size(), low.whole.size(), size_t(1)});
		const uint32_t more = uint32_t(kExactDigits > longest ? kExactDigits - longest : 1);
		std::vector<ExprId> parts;
		const auto with_fraction = [&](const Maybe& whole, const Bound& lo, const Bound& hi) {
			if (!whole) return;
			const bool bare =
			    (!lo || (lo->digits.empty() && !lo->excluded)) && (!hi || !hi->digits.empty() || !hi->excluded);
			std::vector<ExprId> ends;
			if (bare) ends.push_back(rules_.sequence({}));
			if (const Maybe d = digit(lo, hi, more)) ends.push_back(rules_.sequence({rules_.text("."), *d}));
			if (!ends.empty()) parts.push_back(rules_.sequence({*whole, rules_.choice(std::move(ends))}));
		};
		const auto less = [](const std::string& a, const std::string& b) {
			return a.size() != b.size() ? a.size() < b.size() : a < b;
		};
		if (less(last, low.whole)) return {};
		if (low.whole == last) {
			with_fraction(rules_.text(last), low.fraction, high ? Bound(high->fraction) : Bound());
		} else {
			with_fraction(rules_.text(low.whole), low.fraction, {});
			if (high) with_fraction(rules_.text(last), {}, high->fraction);
			const std::string first = plus(low.whole, 1), end = high ? plus(last, -1) : last;
			if (!less(end, first)) with_fraction(whole(first, end), {}, {});
		}
		if (parts.empty()) return {};
		return rules_.choice(std::move(parts));
	}

 private:
	static std::string plus(const std::string& n, int64_t d) { return std::to_string(std::stoll(n) + d); }
	Rules& rules_;
};

struct Signed {
	bool negative = false;
	Digits::Decimal size;
};

Signed read_decimal(std::string text, bool excluded) {
	Signed s;
	if (text.starts_with('-')) s.negative = true, text.erase(0, 1);
	const size_t point = text.find('.');
	s.size.whole = text.substr(0, point);
	if (point != text.npos) s.size.fraction.digits = text.substr(point + 1);
	std::string& f = s.size.fraction.digits;
	f.erase(f.find_last_not_of('0') + 1);
	s.size.fraction.excluded = excluded;
	if (s.size.whole == "0" && f.empty()) s.negative = false;
	return s;
}

} // namespace

std::optional<ExprId> integer_between(Rules& r, int64_t least, int64_t most) {
	Digits d(r);
	std::vector<ExprId> parts;
	if (least > most) return {};
	if (least < 0) {
		const Maybe m = d.whole(std::to_string(std::max<int64_t>(1, -most)), std::to_string(-least));
		if (m) parts.push_back(r.sequence({r.text("-"), *m}));
	}
	if (most >= 0)
		if (const Maybe m = d.whole(std::to_string(std::max<int64_t>(0, least)), std::to_string(most)))
			parts.push_back(*m);
	if (parts.empty()) return {};
	return r.choice(std::move(parts));
}

std::optional<ExprId> decimal_between(Rules& r, const NumberLimits& l) {
	Digits d(r);
	std::vector<ExprId> parts;
	const auto least = l.least ? std::optional(read_decimal(*l.least, l.least_excluded)) : std::nullopt;
	const auto most = l.most ? std::optional(read_decimal(*l.most, l.most_excluded)) : std::nullopt;
	const Digits::Decimal zero{};
	if (!most || !most->negative) {
		const bool above = least && !least->negative;
		if (const Maybe m = d.between(above ? least->size : zero, most ? std::optional(most->size) : std::nullopt))
			parts.push_back(*m);
	}
	if (!least || least->negative) { // negative numbers: limits are swapped
		const bool below = most && most->negative;
		Digits::Decimal from = below ? most->size : zero;
		// -0 equals 0, which an excluded upper limit of 0 forbids
		if (most && !most->negative && most->size.whole == "0" && most->size.fraction.digits.empty())
			from.fraction.excluded = most->size.fraction.excluded;
		if (const Maybe m = d.between(from, least ? std::optional(least->size) : std::nullopt))
			parts.push_back(r.sequence({r.text("-"), *m}));
	}
	if (parts.empty()) return {};
	return r.choice(std::move(parts));
}

} // namespace kvrun::grammar
