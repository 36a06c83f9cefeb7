// The merge loop of all tokenizers: join the neighbours of lowest rank (among equals the leftmost), until no pair of
// neighbours may be joined.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <vector>

namespace kvrun {

struct Symbol {
	static constexpr uint32_t kEnd = UINT32_MAX;
	uint32_t at, n;      // bytes [at, at + n) of the piece; n == 0: joined to an earlier symbol
	uint32_t id;         // in the tokenizer's own numbering
	uint32_t prev, next; // indices of the neighbours, or kEnd
};
struct Join { // result of joining two neighbours
	uint32_t rank, id;
};

// Candidates, lowest rank first, then leftmost. Short pieces use a heap. A long piece, such as millions of equal
// characters, has few ranks, and its candidates arrive from left to right: a list per rank takes constant time each.
class JoinQueue {
 public:
	struct Item {
		uint32_t rank, left, right, n, id; // n: bytes of both symbols when the candidate was found
		bool operator<(const Item& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }
	};
	explicit JoinQueue(size_t symbols) : lists_used_(symbols > 4096) {}
	void push(const Item& i) {
		if (!lists_used_)
			heap_.push(i);
		else
			lists_[i.rank].push(i);
	}
	std::optional<Item> pop() {
		if (!lists_used_) {
			if (heap_.empty()) return {};
			const Item i = heap_.top();
			heap_.pop();
			return i;
		}
		if (lists_.empty()) return {};
		const auto first = lists_.begin();
		const Item i = first->second.pop();
		if (first->second.empty()) lists_.erase(first);
		return i;
	}

 private:
	struct List { // candidates of one rank
		std::vector<Item> in_order;
		size_t head = 0;
		std::priority_queue<Item> late; // those that arrived after one further right
		bool empty() const { return head == in_order.size() && late.empty(); }
		void push(const Item& i) {
			if (head < in_order.size() && i.left < in_order.back().left)
				late.push(i);
			else
				in_order.push_back(i);
		}
		Item pop() {
			Item i;
			if (late.empty() || (head < in_order.size() && in_order[head].left < late.top().left)) {
				i = in_order[head++];
			} else {
				i = late.top();
				late.pop();
			}
			return i;
		}
	};
	bool lists_used_;
	std::priority_queue<Item> heap_;
	std::map<uint32_t, List> lists_; // none is empty
};

// Joins symbols in place. `may_join(left, right)` returns the rank and id of the joined pair, or nothing.
template <class F> void join_symbols(std::vector<Symbol>& s, F&& may_join) {
	JoinQueue queue(s.size());
	auto consider = [&](uint32_t left, uint32_t right) {
		if (left == Symbol::kEnd || right == Symbol::kEnd) return;
		if (const std::optional<Join> j = may_join(s[left], s[right]))
			queue.push({j->rank, left, right, s[left].n + s[right].n, j->id});
	};
	for (uint32_t i = 1; i < s.size(); ++i) consider(i - 1, i);
	while (const std::optional<JoinQueue::Item> j = queue.pop()) {
		Symbol &left = s[j->left], &right = s[j->right];
		if (left.n == 0 || right.n == 0 || left.n + right.n != j->n) continue; // outdated: one was joined since
		left.id = j->id;
		left.n = j->n;
		right.n = 0;
		left.next = right.next;
		if (right.next != Symbol::kEnd) s[right.next].prev = j->left;
		consider(left.prev, j->left);
		consider(j->left, left.next);
	}
}

} // namespace kvrun
