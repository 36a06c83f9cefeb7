// Compiles rules to states: characters become bytes of UTF-8, repetitions become copies.
#include "models/grammar/automaton.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <map>
#include <queue>

namespace kvrun::grammar {
namespace {

constexpr int kDeepestExpr = 1000; // nesting of expressions
constexpr uint32_t kNever = UINT32_MAX;

std::string utf8(uint32_t c) {
	if (c < 0x80) return {char(c)};
	if (c < 0x800) return {char(0xc0 | c >> 6), char(0x80 | (c & 63))};
	if (c < 0x10000) return {char(0xe0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
	return {char(0xf0 | c >> 18), char(0x80 | (c >> 12 & 63)), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
}

} // namespace

std::string control_bytes(std::string_view token_text) {
	std::string out(1, char(kControlBegin));
	out.append(token_text);
	out.push_back(char(kControlEnd));
	return out;
}

struct Automaton::Builder {
	explicit Builder(const Rules& r) : rules(r) {}
	const Rules& rules;
	std::vector<std::vector<Edge>> states;
	std::vector<bool> finals;
	std::vector<StateId> starts;
	std::vector<ExprId> extra; // bodies of extra rules for repetitions; numbered after the grammar's own
	std::map<ExprId, RuleId> extra_of;
	size_t n_edges = 0;

	StateId state() {
		if (states.size() >= kMostStates)
			fail(Code::Unsupported, "the grammar is too large: its repetitions and rules take more than {} states",
			     kMostStates);
		states.emplace_back();
		finals.push_back(false);
		return StateId(states.size() - 1);
	}
	void edge(StateId from, Edge e) {
		if (++n_edges > kMostEdges)
			fail(Code::Unsupported, "the grammar is too large: its states take more than {} edges", kMostEdges);
		states[from].push_back(e);
	}
	void empty(StateId from, StateId to) { edge(from, {Edge::Kind::Empty, 0, 0, 0, to}); }
	void bytes(StateId from, uint8_t low, uint8_t high, StateId to) {
		edge(from, {Edge::Kind::Byte, low, high, 0, to});
	}

	void text(StateId from, std::string_view s, StateId to) {
		if (s.empty()) return empty(from, to);
		for (size_t i = 0; i < s.size(); ++i) {
			const StateId next = i + 1 == s.size() ? to : state();
			bytes(from, uint8_t(s[i]), uint8_t(s[i]), next);
			from = next;
		}
	}

	// Adds the characters `low` to `high`, whose UTF-8 has equal lengths, from byte number `at` on.
	void same_length(StateId from, const std::string& low, const std::string& high, size_t at, StateId to,
	                 std::map<size_t, StateId>& any) {
		const uint8_t a = uint8_t(low[at]), b = uint8_t(high[at]);
		if (at + 1 == low.size()) return bytes(from, a, b, to);
		const auto rest_is = [&](const std::string& s, char c) {
			return std::all_of(s.begin() + ptrdiff_t(at) + 1, s.end(), [c](char x) { return x == c; });
		};
		const auto through = [&](uint8_t from_byte, uint8_t to_byte, const std::string& lo, const std::string& hi) {
			const bool whole = rest_is(lo, char(0x80)) && rest_is(hi, char(0xbf));
			const size_t left = low.size() - at - 1;
			if (whole) { // any continuation bytes may follow
				const auto found = any.find(left);
				StateId next = found == any.end() ? state() : found->second;
				bytes(from, from_byte, to_byte, next);
				if (found != any.end()) return;
				any[left] = next;
				return same_length(next, lo, hi, at + 1, to, any);
			}
			const StateId next = state();
			bytes(from, from_byte, to_byte, next);
			same_length(next, lo, hi, at + 1, to, any);
		};
		const auto filled = [&](const std::string& s, char c) {
			std::string out = s.substr(0, at + 1);
			out.append(s.size() - at - 1, c);
			return out;
		};
		if (a == b) return through(a, a, low, high);
		uint8_t first = a, last = b;
		if (!rest_is(low, char(0x80))) through(first++, a, low, filled(low, char(0xbf)));
		if (!rest_is(high, char(0xbf))) through(b, last--, filled(high, char(0x80)), high);
		if (first <= last) through(first, last, filled(low, char(0x80)), filled(high, char(0xbf)));
	}

	void chars(StateId from, const std::vector<CharRange>& ranges, StateId to) {
		std::map<size_t, StateId> any; // by the number of remaining bytes
		constexpr CharRange kLengths[] = {{0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xffff}, {0x10000, kLastChar}};
		for (const CharRange& r : ranges)
			for (const CharRange& l : kLengths) {
				const uint32_t first = std::max(r.first, l.first), last = std::min(r.last, l.last);
				if (first <= last) same_length(from, utf8(first), utf8(last), 0, to, any);
			}
	}

	// Small expressions are copied; for large ones each copy is a call of one rule.
	bool is_small(ExprId id) const {
		const Expr& e = rules.expr(id);
		return e.kind == Expr::Kind::Rule || (e.kind == Expr::Kind::Text && e.text.size() < 4) ||
		       (e.kind == Expr::Kind::Chars && !e.ranges.empty() && e.ranges.back().last < 0x80);
	}
	RuleId rule_of(ExprId id) {
		const auto [at, fresh] = extra_of.try_emplace(id, RuleId(rules.n_rules() + extra.size()));
		if (fresh) extra.push_back(id);
		return at->second;
	}

	void repeat(StateId from, const Expr& e, StateId to, int depth) {
		const ExprId what = e.parts[0];
		const bool ends = e.most != kNoLimit;
		const uint32_t copies = ends ? e.most : e.least;
		const bool call = copies > 4 && !is_small(what);
		const auto one = [&](StateId a, StateId b) {
			if (call)
				edge(a, {Edge::Kind::Call, 0, 0, rule_of(what), b});
			else
				expr(a, what, b, depth + 1);
		};
		StateId at = from;
		for (uint32_t i = 0; i < copies; ++i) {
			if (i >= e.least) empty(at, to);
			const StateId next = state();
			one(at, next);
			at = next;
		}
		if (ends) return empty(at, to);
		const StateId loop = state(); // for an unlimited number
		empty(at, loop);
		const StateId back = state();
		expr(loop, what, back, depth + 1);
		empty(back, loop);
		empty(loop, to);
	}

	void expr(StateId from, ExprId id, StateId to, int depth) {
		if (depth > kDeepestExpr)
			fail(Code::Unsupported, "the grammar has more than {} expressions inside each other", kDeepestExpr);
		const Expr& e = rules.expr(id);
		switch (e.kind) {
		case Expr::Kind::Text: return text(from, e.text, to);
		case Expr::Kind::Chars: return chars(from, e.ranges, to);
		case Expr::Kind::Rule: return edge(from, {Edge::Kind::Call, 0, 0, e.rule, to});
		case Expr::Kind::Repeat: return repeat(from, e, to, depth);
		case Expr::Kind::Choice:
			for (const ExprId p : e.parts) {
				const StateId begin = state();
				empty(from, begin);
				expr(begin, p, to, depth + 1);
			}
			return;
		case Expr::Kind::Sequence:
			if (e.parts.empty()) return empty(from, to);
			for (size_t i = 0; i < e.parts.size(); ++i) {
				const StateId next = i + 1 == e.parts.size() ? to : state();
				expr(from, e.parts[i], next, depth + 1);
				from = next;
			}
			return;
		}
	}

	void rule(ExprId body) {
		const StateId begin = state(), end = state();
		starts.push_back(begin);
		finals[end] = true;
		expr(begin, body, end, 0);
	}
};

Automaton::Automaton(const Rules& rules) : root_(rules.root()) {
	Builder b(rules);
	for (RuleId r = 0; r < rules.n_rules(); ++r) {
		if (!rules.has_body(r))
			fail(Code::Format, "the grammar uses the rule {}, which it does not define", one_line(rules.name(r), 40));
		b.rule(rules.body(r));
	}
	for (size_t i = 0; i < b.extra.size(); ++i) b.rule(b.extra[i]); // may add more
	starts_ = std::move(b.starts);
	first_edge_ = {0};
	edges_.reserve(b.n_edges);
	for (const std::vector<Edge>& s : b.states) {
		edges_.insert(edges_.end(), s.begin(), s.end());
		first_edge_.push_back(uint32_t(edges_.size()));
		reads_.push_back(std::ranges::any_of(s, [](const Edge& e) { return e.kind == Edge::Kind::Byte; }));
	}
	final_ = std::move(b.finals);
	// follows chains of empty edges to an end
	only_ends_.assign(n_states(), false);
	for (StateId s = 0; s < n_states(); ++s) {
		StateId at = s;
		for (int i = 0; i < 8 && !final_[at]; ++i) {
			const auto e = edges(at);
			if (e.size() != 1 || e[0].kind != Edge::Kind::Empty) break;
			at = e[0].to;
		}
		only_ends_[s] = final_[at] && edges(at).empty();
	}
	check(rules);
}

void Automaton::check(const Rules& rules) {
	const size_t n = n_states(), n_rules = starts_.size();
	std::vector<RuleId> rule_of(n);
	for (RuleId r = 0; r < n_rules; ++r)
		for (StateId s = starts_[r]; s < (r + 1 < n_rules ? starts_[r + 1] : StateId(n)); ++s) rule_of[s] = r;
	const auto name = [&](RuleId r) { return r < rules.n_rules() ? one_line(rules.name(r), 40) : "of a repetition"; };

	// Heights, smallest first: an edge is used once the heights that it needs are known.
	std::vector<std::vector<uint32_t>> into(n), calls(n_rules); // edges into a state; edges that call a rule
	std::vector<StateId> from(edges_.size());
	for (StateId s = 0; s < n; ++s)
		for (uint32_t e = first_edge_[s]; e < first_edge_[s + 1]; ++e) {
			from[e] = s;
			into[edges_[e].to].push_back(e);
			if (edges_[e].kind == Edge::Kind::Call) calls[edges_[e].rule].push_back(e);
		}
	height_.assign(n, kNever);
	std::priority_queue<std::pair<uint32_t, StateId>, std::vector<std::pair<uint32_t, StateId>>, std::greater<>> queue;
	for (StateId s = 0; s < n; ++s)
		if (final_[s]) queue.emplace(0, s);
	std::vector<bool> known(n, false);
	const auto pass = [&](uint32_t e) {
		const Edge& edge = edges_[e];
		if (!known[edge.to]) return;
		uint32_t h = height_[edge.to];
		if (edge.kind == Edge::Kind::Call) {
			if (!known[starts_[edge.rule]]) return;
			h = std::max(h, height_[starts_[edge.rule]] + (only_ends_[edge.to] ? 0 : 1));
		}
		if (!known[from[e]]) queue.emplace(h, from[e]);
	};
	while (!queue.empty()) {
		const auto [h, s] = queue.top();
		queue.pop();
		if (known[s]) continue;
		known[s] = true;
		height_[s] = h;
		for (const uint32_t e : into[s]) pass(e);
		if (starts_[rule_of[s]] == s)
			for (const uint32_t e : calls[rule_of[s]]) pass(e);
	}
	if (height_[start()] == kNever) fail(Code::Format, "the grammar has no text: its rule {} never ends", name(root_));
	for (const uint32_t h : height_)
		if (h != kNever && h > kDeepest / 4)
			fail(Code::Unsupported, "the grammar needs rules more than {} deep inside each other", kDeepest / 4);
	// removes edges to states from which no rule ends
	for (StateId s = 0; s < n; ++s)
		for (uint32_t e = first_edge_[s]; e < first_edge_[s + 1]; ++e) {
			Edge& edge = edges_[e];
			const bool dead =
			    height_[edge.to] == kNever || (edge.kind == Edge::Kind::Call && height_[starts_[edge.rule]] == kNever);
			if (dead) edge = {Edge::Kind::Empty, 0, 0, 0, s}; // to its own state: no effect
		}

	// Rules that may end without reading a byte; then rules that call themselves before they have read one.
	std::vector<bool> nullable(n, false);
	std::vector<StateId> work;
	const auto mark = [&](StateId s) {
		if (!nullable[s]) nullable[s] = true, work.push_back(s);
	};
	for (StateId s = 0; s < n; ++s)
		if (final_[s]) mark(s);
	const auto passes = [&](const Edge& e) {
		return nullable[e.to] &&
		       (e.kind == Edge::Kind::Empty || (e.kind == Edge::Kind::Call && nullable[starts_[e.rule]]));
	};
	while (!work.empty()) {
		const StateId s = work.back();
		work.pop_back();
		for (const uint32_t e : into[s])
			if (passes(edges_[e])) mark(from[e]);
		if (starts_[rule_of[s]] == s)
			for (const uint32_t e : calls[rule_of[s]])
				if (passes(edges_[e])) mark(from[e]);
	}
	std::vector<std::vector<RuleId>> first(n_rules); // rules that a rule may call before it reads
	for (RuleId r = 0; r < n_rules; ++r) {
		std::vector<StateId> pending{starts_[r]};
		std::vector<RuleId>& list = first[r];
		std::vector<bool> been(r + 1 < n_rules ? starts_[r + 1] - starts_[r] : n - starts_[r], false);
		been[0] = true;
		while (!pending.empty()) {
			const StateId s = pending.back();
			pending.pop_back();
			for (const Edge& e : edges(s)) {
				if (e.kind == Edge::Kind::Call) list.push_back(e.rule);
				const bool through =
				    e.kind == Edge::Kind::Empty || (e.kind == Edge::Kind::Call && nullable[starts_[e.rule]]);
				if (through && !been[e.to - starts_[r]]) been[e.to - starts_[r]] = true, pending.push_back(e.to);
			}
		}
		std::ranges::sort(list);
		list.erase(std::unique(list.begin(), list.end()), list.end());
	}
	enum : uint8_t { New, Open, Done };
	std::vector<uint8_t> seen(n_rules, New);
	for (RuleId root = 0; root < n_rules; ++root) {
		std::vector<std::pair<RuleId, size_t>> path;
		if (seen[root] == New) path.emplace_back(root, 0), seen[root] = Open;
		while (!path.empty()) {
			auto& [r, at] = path.back();
			if (at == first[r].size()) {
				seen[r] = Done;
				path.pop_back();
				continue;
			}
			const RuleId next = first[r][at++];
			if (seen[next] == Open)
				fail(
				    Code::Format,
				    "the grammar's rule {} comes back to itself before it has read anything (left recursion); write it "
				    "as a repetition",
				    name(next));
			if (seen[next] == New) seen[next] = Open, path.emplace_back(next, 0);
		}
	}
}

} // namespace kvrun::grammar
