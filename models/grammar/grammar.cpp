// Which tokens may come next in an answer that follows a grammar.
#include "models/grammar/grammar.h"
#include "engine/core/error.h"
#include <algorithm>
#include <map>

namespace kvrun::grammar {

Grammar::Grammar(const Rules& rules, std::shared_ptr<const TokenTrie> trie, Begin begin)
    : automaton_(rules), trie_(std::move(trie)), begin_(std::move(begin)), configs_(automaton_),
      path_(trie_->longest() + 1) {
	for (uint32_t t = 0; t < trie_->vocab(); ++t)
		if (std::ranges::any_of(begin_.markers,
		                        [&](const std::string& m) { return trie_->text(t).find(m.back()) != m.npos; }))
			may_complete_.push_back(t);
}

// Calls accept(node, config) for each trie node in [node, end) that can be reached from c, the set before these nodes.
template <class F> void Grammar::walk(ConfigId c, uint32_t node, uint32_t end, F accept) {
	const std::span<const TokenTrie::Node> nodes = trie_->nodes();
	if (node == end) return;
	path_[nodes[node].depth - 1] = c;
	while (node < end) {
		const TokenTrie::Node& n = nodes[node];
		const ConfigId to = configs_.next(path_[n.depth - 1], n.byte);
		if (to == kDead) {
			node = n.next;
			continue;
		}
		path_[n.depth] = to;
		accept(node, to);
		++node;
	}
}

void Grammar::add_token(Bits& bits, uint32_t node) const {
	for (uint32_t t = trie_->nodes()[node].token; t != TokenTrie::kNone; t = trie_->twin(t))
		bits[t / 64] |= uint64_t(1) << t % 64;
}

const Grammar::ByItself& Grammar::by_itself(ConfigId c) {
	const auto [at, fresh] = by_itself_.try_emplace(c);
	ByItself& known = at->second;
	if (!fresh) return known;
	walk(c, 0, uint32_t(trie_->nodes().size()), [&](uint32_t node, ConfigId to) {
		for (uint32_t t = trie_->nodes()[node].token; t != TokenTrie::kNone; t = trie_->twin(t))
			known.tokens.push_back(t);
		if (configs_.may_end(to) && trie_->nodes()[node].next > node + 1) known.exits.push_back(node);
	});
	if (known.tokens.size() > kManyTokens) {
		known.bits.assign((trie_->vocab() + 63) / 64, 0);
		for (const uint32_t t : known.tokens) known.bits[t / 64] |= uint64_t(1) << t % 64;
		known.tokens = {};
	}
	by_itself_bytes_ += known.bytes();
	return known;
}

const Grammar::Bits& Grammar::mask(ConfigId c) {
	const auto [at, fresh] = masks_.try_emplace(c);
	Bits& bits = at->second;
	if (!fresh) return bits;
	bits.assign((trie_->vocab() + 63) / 64, 0);
	std::map<StackId, std::vector<Place>> by_stack;
	for (const Place& p : configs_.places(c)) by_stack[p.stack].push_back(p);
	for (auto& [stack, places] : by_stack) {
		if (configs_.depth(stack) > Automaton::kDeepest / 2 || stack == Configs::kUnknown) {
			walk(configs_.config(std::move(places)), 0, uint32_t(trie_->nodes().size()),
			     [&](uint32_t node, ConfigId) { add_token(bits, node); });
			continue;
		}
		for (Place& p : places) p.stack = Configs::kUnknown;
		const ByItself& known = by_itself(configs_.config(std::move(places)));
		for (size_t i = 0; i < known.bits.size(); ++i) bits[i] |= known.bits[i];
		for (const uint32_t t : known.tokens) bits[t / 64] |= uint64_t(1) << t % 64;
		const ConfigId after = configs_.returned(stack);
		if (after == kDead) continue;
		for (const uint32_t node : known.exits)
			walk(after, node + 1, trie_->nodes()[node].next, [&](uint32_t n, ConfigId) { add_token(bits, n); });
	}
	return bits;
}

void Grammar::make_room() {
	configs_.begin_step();
	if (masks_.size() > kMostMasks) masks_.clear();
	const bool full = configs_.is_full();
	if (!full && by_itself_bytes_ <= kMostByItself) return;
	masks_.clear();
	by_itself_.clear();
	by_itself_bytes_ = 0;
	if (!full) return;
	std::vector<ConfigId*> used;
	for (Matcher* m : matchers_) used.push_back(&m->at_);
	configs_.forget(used);
}

Matcher::Matcher(std::shared_ptr<Grammar> g)
    : grammar_(std::move(g)), at_(grammar_->configs_.start()), waiting_(!grammar_->begin_.markers.empty()) {
	grammar_->matchers_.push_back(this);
}

Matcher::~Matcher() { std::erase(grammar_->matchers_, this); }

bool Matcher::pass(std::string_view bytes, ConfigId& c) {
	for (const char b : bytes)
		if ((c = grammar_->configs_.next(c, uint8_t(b))) == kDead) return false;
	return true;
}

bool Matcher::wait(std::string_view bytes, std::string& tail, bool& waiting, ConfigId& c) {
	tail += bytes;
	size_t first = tail.npos, behind = 0, longest = 0;
	for (const std::string& m : grammar_->begin_.markers) {
		longest = std::max(longest, m.size());
		const size_t at = tail.find(m);
		if (at < first) first = at, behind = at + m.size();
	}
	if (first == tail.npos) {
		if (tail.size() > longest) tail.erase(0, tail.size() - longest);
		return true;
	}
	waiting = false;
	return pass(std::string_view(tail).substr(grammar_->begin_.with_marker ? first : behind), c);
}

bool Matcher::may_end() const { return waiting_ ? grammar_->begin_.may_end : grammar_->configs_.may_end(at_); }
bool Matcher::is_finished() const { return !waiting_ && grammar_->configs_.only_ends(at_); }

bool Matcher::allows(uint32_t token) {
	const TokenTrie& trie = grammar_->trie();
	if (token >= trie.vocab()) return false;
	const std::string_view bytes = trie.text(token);
	if (trie.is_end(token) && may_end()) return true;
	if (trie.is_end(token) && waiting_) return false;
	if (bytes.empty()) return waiting_;
	ConfigId c = at_;
	if (!waiting_) return pass(bytes, c);
	std::string tail = tail_;
	bool waiting = true;
	return wait(bytes, tail, waiting, c);
}

std::span<const uint64_t> Matcher::allowed() {
	grammar_->make_room();
	const TokenTrie& trie = grammar_->trie();
	if (waiting_) {
		bits_.assign((trie.vocab() + 63) / 64, ~uint64_t(0));
		const auto check = [&](uint32_t t) {
			if (t < trie.vocab() && !allows(t)) bits_[t / 64] &= ~(uint64_t(1) << t % 64);
		};
		for (const uint32_t t : grammar_->may_complete_) check(t);
		for (const uint32_t t : trie.ends()) check(t);
		return bits_;
	}
	bits_ = grammar_->mask(at_);
	if (may_end())
		for (const uint32_t t : trie.ends())
			if (t < trie.vocab()) bits_[t / 64] |= uint64_t(1) << t % 64;
	return bits_;
}

bool Matcher::accept(uint32_t token) {
	grammar_->make_room();
	const TokenTrie& trie = grammar_->trie();
	if (token >= trie.vocab()) return false;
	const std::string_view bytes = trie.text(token);
	ConfigId c = at_;
	std::string tail = tail_;
	bool waiting = waiting_;
	const bool passes = bytes.empty() ? waiting_ : waiting_ ? wait(bytes, tail, waiting, c) : pass(bytes, c);
	if (!passes) return trie.is_end(token) && may_end();
	at_ = c, tail_ = std::move(tail), waiting_ = waiting;
	return true;
}

} // namespace kvrun::grammar
