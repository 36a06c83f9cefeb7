// Tokens of the World tokenizer.
#include "models/longest.h"
#include "engine/core/utf8.h"

namespace kvrun {
namespace {

// A token begins in at most this many places before each byte, which bounds the time; real ones have at most 128.
constexpr size_t kMostBytes = 512;

// Control tokens and those that a model never learnt are no text.
std::vector<PieceTrie::Piece> pieces_of(const Vocab& v) {
	std::vector<PieceTrie::Piece> out;
	for (uint32_t id = 0; id < v.size(); ++id) {
		if (v.kinds[id] != TokenKind::Normal && v.kinds[id] != TokenKind::UserDefined) continue;
		if (v.texts[id].size() > kMostBytes)
			fail(Code::Format,
			     "{}: key tokenizer.ggml.tokens: token {}, '{}', has {} bytes, at most {} are accepted in a vocabulary "
			     "of "
			     "rwkv; the file is damaged",
			     v.file, id, one_line(v.texts[id], 40), v.texts[id].size(), kMostBytes);
		out.push_back({v.texts[id], id});
	}
	return out;
}

int hex_of(char c) {
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

} // namespace

Longest::Longest(const Vocab& v) : trie_(pieces_of(v)) {}

void Longest::encode(const Vocab& v, std::string_view text, std::vector<uint32_t>& out) const {
	while (!text.empty()) {
		size_t longest = 0;
		uint32_t best = v.unknown;
		trie_.each_prefix(text, [&](size_t n, uint32_t id) { longest = n, best = id; });
		if (best == kNoToken)
			fail(Code::Invalid, "{}: the vocabulary has no token for byte {}, and no unknown token", v.file,
			     unsigned(uint8_t(text[0])));
		out.push_back(best);
		text.remove_prefix(std::max<size_t>(longest, 1));
	}
}

std::string unescaped_token(std::string_view text) {
	std::string out;
	for (size_t i = 0; i < text.size(); ++i) {
		if (text[i] != '\\' || i + 1 == text.size()) {
			out += text[i];
			continue;
		}
		const char c = text[++i];
		const int high = c == 'x' && i + 2 < text.size() ? hex_of(text[i + 1]) : -1,
		          low = high < 0 ? -1 : hex_of(text[i + 2]);
		if (low >= 0)
			out += char(high * 16 + low), i += 2;
		else
			out += c == 't' ? '\t' : c == 'n' ? '\n' : c == 'r' ? '\r' : c;
	}
	return out;
}

} // namespace kvrun
