// SentencePiece-style tokens.
#include "models/spm.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <functional>

namespace kvrun {
namespace {

struct Char { // a well-formed character, or a byte that belongs to none
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

constexpr uint32_t kNeverJoined = UINT32_MAX; // rank of a token that joins must not produce

} // namespace

void push_byte_tokens(const Vocab& v, std::string_view bytes, std::vector<uint32_t>& out) {
	if (v.has_marks() && bytes == kSpaceMark) bytes = " ";
	for (char c : bytes) {
		const uint32_t byte = v.byte_tokens[uint8_t(c)];
		if (byte == kNoToken && v.unknown == kNoToken)
			fail(Code::Invalid, "{}: the vocabulary has no token for byte 0x{:02X}; is the text UTF-8?", v.file,
			     uint8_t(c));
		out.push_back(byte != kNoToken ? byte : v.unknown);
	}
}

Spm::Spm(const Vocab& v) : ranks_(v.size()) {
	std::vector<float> scores = v.scores; // becomes the distinct ones, best first
	std::sort(scores.begin(), scores.end(), std::greater<>());
	scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
	for (uint32_t id = 0; id < v.size(); ++id) {
		const auto at = std::lower_bound(scores.begin(), scores.end(), v.scores[id], std::greater<>());
		ranks_[id] = uint32_t(at - scores.begin());
		// in the text of a user-defined token the mark is not a space; such tokens are found before encoding
		if (v.kinds[id] == TokenKind::UserDefined && v.texts[id].find(kSpaceMark) != std::string_view::npos)
			ranks_[id] = kNeverJoined;
		each_pair(v.texts[id], [&](uint32_t a, uint32_t b, size_t) { neighbours_.insert(a, b, 1); });
	}
}

uint32_t Spm::word(const Vocab& v, std::string_view text) const {
	if (text.size() > v.longest) return kNoToken;
	const uint32_t id = v.find_word(text);
	return id != kNoToken && ranks_[id] != kNeverJoined ? id : kNoToken;
}

void Spm::run(const Vocab& v, std::string_view run, std::vector<Symbol>& s, std::vector<uint32_t>& out) const {
	s.clear();
	for (size_t at = 0; at < run.size();) {
		const uint32_t n = char_at(run, at).n, i = uint32_t(s.size());
		s.push_back({uint32_t(at), n, word(v, run.substr(at, n)), i - 1, i + 1}); // i - 1 wraps to kEnd for the first
		at += n;
	}
	s.back().next = Symbol::kEnd;
	join_symbols(s, [&](const Symbol& left, const Symbol& right) -> std::optional<Join> {
		const uint32_t id = word(v, run.substr(left.at, left.n + right.n));
		if (id == kNoToken) return {};
		return Join{ranks_[id], id};
	});
	for (uint32_t i = 0; i != Symbol::kEnd; i = s[i].next) {
		if (s[i].id != kNoToken)
			out.push_back(s[i].id);
		else
			push_byte_tokens(v, run.substr(s[i].at, s[i].n), out);
	}
}

// No join spans two characters that are not neighbours in any token, so the text is cut there into runs (in practice
// words), which are encoded separately.
void Spm::encode(const Vocab& v, std::string_view text, std::vector<uint32_t>& out) const {
	if (text.empty()) return;
	std::vector<Symbol> symbols;
	size_t begin = 0;
	each_pair(text, [&](uint32_t a, uint32_t b, size_t at) {
		if (neighbours_.find(a, b)) return;
		run(v, text.substr(begin, at - begin), symbols, out);
		begin = at;
	});
	run(v, text.substr(begin), symbols, out);
}

} // namespace kvrun
