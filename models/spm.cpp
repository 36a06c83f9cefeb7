// SentencePiece-style tokens.
#include "models/spm.h"
#include "engine/core/utf8.h"
#include <queue>

namespace kvrun {
namespace {

struct Char { // one well-formed character, or one byte that is part of none
	uint32_t code, n;
};

Char char_at(std::string_view s, size_t at) {
	const size_t n = utf8_char(s, at);
	if (n == 0) return {0x110000u + uint8_t(s[at]), 1};
	uint32_t code = uint8_t(s[at]) & (n == 1 ? 0x7fu : 0xffu >> (n + 1));
	for (size_t i = 1; i < n; ++i) code = code << 6 | (uint8_t(s[at + i]) & 0x3fu);
	return {code, uint32_t(n)};
}

template <class F> void each_pair(std::string_view s, F&& f) {
	if (s.empty()) return;
	Char last = char_at(s, 0);
	for (size_t at = last.n; at < s.size();) {
		const Char next = char_at(s, at);
		f(last.code, next.code, at);
		at += next.n;
		last = next;
	}
}

constexpr uint32_t kEnd = UINT32_MAX;

struct Symbol {
	uint32_t at, n;      // bytes of the run; n = 0: joined to the symbol before
	uint32_t prev, next; // kEnd at the ends
};
struct Join { // a candidate: symbols left and right together are a token
	float score;
	uint32_t left, right, n;
	bool operator<(const Join& o) const { return score < o.score || (score == o.score && left > o.left); }
};

} // namespace

struct Spm::Work {
	std::vector<Symbol> symbols;
	std::priority_queue<Join> joins; // highest score first, then leftmost
};

Spm::Spm(const Vocab& v) {
	for (std::string_view t : v.texts)
		each_pair(t, [&](uint32_t a, uint32_t b, size_t) { neighbours_.insert(a, b, 1); });
}

void Spm::push_symbol(const Vocab& v, std::string_view symbol, std::vector<uint32_t>& out) const {
	const uint32_t id = v.find_word(symbol);
	if (id != kNoToken) {
		out.push_back(id);
		return;
	}
	for (char c : symbol) {
		const uint32_t byte = v.byte_tokens[uint8_t(c)];
		if (byte == kNoToken && v.unknown == kNoToken)
			fail(Code::Invalid,
			     "{}: the vocabulary has no token for byte 0x{:02X}; this text cannot be used with this model", v.file,
			     uint8_t(c));
		out.push_back(byte != kNoToken ? byte : v.unknown);
	}
}

void Spm::run(const Vocab& v, std::string_view run, Work& w, std::vector<uint32_t>& out) const {
	auto& s = w.symbols;
	s.clear();
	for (size_t at = 0; at < run.size();) {
		const uint32_t n = char_at(run, at).n, i = uint32_t(s.size());
		s.push_back({uint32_t(at), n, i - 1, i + 1}); // i - 1 of the first is kEnd
		at += n;
	}
	s.back().next = kEnd;

	auto consider = [&](uint32_t left, uint32_t right) {
		if (left == kEnd || right == kEnd) return;
		const uint32_t n = s[left].n + s[right].n;
		const uint32_t id = v.find_word(run.substr(s[left].at, n));
		if (id != kNoToken) w.joins.push({v.scores[id], left, right, n});
	};
	for (uint32_t i = 1; i < s.size(); ++i) consider(i - 1, i);
	while (!w.joins.empty()) {
		const Join j = w.joins.top();
		w.joins.pop();
		Symbol &left = s[j.left], &right = s[j.right];
		if (left.n == 0 || right.n == 0 || left.n + right.n != j.n) continue; // one of them has been joined since
		left.n = j.n;
		right.n = 0;
		left.next = right.next;
		if (right.next != kEnd) s[right.next].prev = j.left;
		consider(left.prev, j.left);
		consider(j.left, left.next);
	}
	for (uint32_t i = 0; i != kEnd; i = s[i].next) push_symbol(v, run.substr(s[i].at, s[i].n), out);
}

// A join never crosses two characters that are neighbours in no token, so the text falls into runs that can be done one
// by one: words, in practice.
void Spm::encode(const Vocab& v, std::string_view text, std::vector<uint32_t>& out) const {
	if (text.empty()) return;
	Work w;
	size_t begin = 0;
	each_pair(text, [&](uint32_t a, uint32_t b, size_t at) {
		if (neighbours_.find(a, b)) return;
		run(v, text.substr(begin, at - begin), w, out);
		begin = at;
	});
	run(v, text.substr(begin), w, out);
}

} // namespace kvrun
