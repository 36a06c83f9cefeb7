// Which bytes may follow in texts of a grammar, from its rules alone: all ways to read the text so far, each as a list
// of what must still follow. Slow, and as simple as possible.
#pragma once
#include "models/grammar/automaton.h"
#include <set>
#include <vector>

namespace kvrun::grammar {

class NaiveGrammar {
 public:
	explicit NaiveGrammar(const Rules& r) : rules_(r) {
		ways_ = opened({{{Todo::Kind::Expr, r.body(r.root()), 0, 0, 0, ""}}});
	}

	bool takes(std::string_view bytes) const { return !after(bytes).empty(); }
	void push(std::string_view bytes) { ways_ = after(bytes); }
	bool complete() const { return ways_.contains(Way{}); }

 private:
	struct Todo {
		enum class Kind { Expr, Again, Bytes, Rest } kind;
		ExprId expr;          // Expr, Again
		uint32_t least, most; // Again: repetitions left
		uint32_t at;          // Rest: number of known bytes of a character, which are in `text`
		std::string text;     // Bytes: the bytes that follow; Rest: of the character
		auto operator<=>(const Todo&) const = default;
	};
	using Way = std::vector<Todo>; // the last one comes first

	static uint32_t decode(const std::string& s) {
		uint32_t c = uint8_t(s[0]);
		if (s.size() > 1) c &= 0x3fu >> (s.size() - 1);
		for (size_t i = 1; i < s.size(); ++i) c = c << 6 | (uint8_t(s[i]) & 0x3f);
		return c;
	}
	static size_t length(uint8_t lead) {
		return lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
	}

	// Whether a character of the class begins with these bytes.
	bool begins(const Expr& e, const std::string& s) const {
		const size_t n = length(uint8_t(s[0]));
		if (n == 0 || s.size() > n) return false;
		const size_t left = n - s.size();
		std::string first = s, last = s; // the first and last character with this beginning
		first.append(left, char(0x80)), last.append(left, char(0xbf));
		uint32_t low = decode(first);
		const uint32_t high = decode(last);
		for (size_t i = 1; i < s.size(); ++i)
			if ((uint8_t(s[i]) & 0xc0) != 0x80) return false;
		constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
		low = std::max(low, kLeast[n]);
		if (low > high) return false;
		for (const CharRange& r : e.ranges)
			if (low <= r.last && r.first <= high) return true;
		return false;
	}

	// All ways reachable without reading: the last item of each then reads bytes.
	std::set<Way> opened(std::vector<Way> pending) const {
		std::set<Way> out, seen;
		while (!pending.empty()) {
			Way w = pending.back();
			pending.pop_back();
			if (w.size() > 400 || !seen.insert(w).second) continue;
			if (w.empty() || w.back().kind == Todo::Kind::Bytes || w.back().kind == Todo::Kind::Rest) {
				out.insert(w);
				continue;
			}
			const Todo t = w.back();
			w.pop_back();
			if (t.kind == Todo::Kind::Again) {
				if (t.least == 0) pending.push_back(w);
				if (t.most > 0) {
					w.push_back({Todo::Kind::Again, t.expr, t.least ? t.least - 1 : 0,
					             t.most == kNoLimit ? kNoLimit : t.most - 1, 0, ""});
					w.push_back({Todo::Kind::Expr, t.expr, 0, 0, 0, ""});
					pending.push_back(w);
				}
				continue;
			}
			const Expr& e = rules_.expr(t.expr);
			const auto expr = [](ExprId id) { return Todo{Todo::Kind::Expr, id, 0, 0, 0, ""}; };
			switch (e.kind) {
			case Expr::Kind::Text:
				if (!e.text.empty()) w.push_back({Todo::Kind::Bytes, 0, 0, 0, 0, e.text});
				pending.push_back(w);
				break;
			case Expr::Kind::Chars:
				w.push_back({Todo::Kind::Rest, t.expr, 0, 0, 0, ""});
				pending.push_back(w);
				break;
			case Expr::Kind::Sequence:
				for (size_t i = e.parts.size(); i-- > 0;) w.push_back(expr(e.parts[i]));
				pending.push_back(w);
				break;
			case Expr::Kind::Choice:
				for (const ExprId p : e.parts) {
					pending.push_back(w);
					pending.back().push_back(expr(p));
				}
				break;
			case Expr::Kind::Repeat:
				w.push_back({Todo::Kind::Again, e.parts[0], e.least, e.most, 0, ""});
				pending.push_back(w);
				break;
			case Expr::Kind::Rule:
				w.push_back(expr(rules_.body(e.rule)));
				pending.push_back(w);
				break;
			}
		}
		return out;
	}

	std::set<Way> after(std::string_view bytes) const {
		std::set<Way> ways = ways_;
		for (const char c : bytes) {
			std::vector<Way> next;
			for (Way w : ways) {
				if (w.empty()) continue;
				Todo t = w.back();
				w.pop_back();
				if (t.kind == Todo::Kind::Bytes) {
					if (t.text[0] != c) continue;
					t.text.erase(0, 1);
					if (!t.text.empty()) w.push_back(t);
				} else {
					t.text += c;
					if (!begins(rules_.expr(t.expr), t.text)) continue;
					if (t.text.size() < length(uint8_t(t.text[0]))) w.push_back(t);
				}
				next.push_back(std::move(w));
			}
			ways = opened(std::move(next));
			if (ways.empty()) break;
		}
		return ways;
	}

	const Rules& rules_;
	std::set<Way> ways_;
};

} // namespace kvrun::grammar
