// WordPiece tokens.
#include "models/wpm.h"
#include "models/spm.h"

namespace kvrun {
namespace {

constexpr size_t kMaxWordChars = 100; // characters; longer words are unknown, as in the models' own tokenizers

size_t character_count(std::string_view s) {
	return size_t(std::count_if(s.begin(), s.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; }));
}

} // namespace

Wpm::Wpm(const Gguf& g, const Vocab& v) : Wpm(g, pieces_of(v)) {}

Wpm::Wpm(const Gguf& g, Pieces pieces) : begin_(std::move(pieces.begin)), inside_(std::move(pieces.inside)) {
	rules_.lowercase = g.flag("tokenizer.ggml.normalizer.lowercase", true);
	rules_.strip_accents = g.flag("tokenizer.ggml.normalizer.strip_accents", rules_.lowercase);
}

// The mark alone is U+2581 inside a word: no token is an empty beginning.
Wpm::Pieces Wpm::pieces_of(const Vocab& v) {
	Pieces out;
	for (uint32_t id = 0; id < v.size(); ++id) {
		const TokenKind k = v.kinds[id];
		if (k == TokenKind::Control || k == TokenKind::Unknown || k == TokenKind::Byte) continue;
		const std::string_view t = v.texts[id];
		if (t.starts_with(kSpaceMark) && t != kSpaceMark)
			out.begin.push_back({t.substr(kSpaceMark.size()), id});
		else
			out.inside.push_back({t, id});
	}
	return out;
}

void Wpm::word(const Vocab& v, std::string_view word, std::vector<uint32_t>& out) const {
	const size_t known = out.size();
	bool found = character_count(word) <= kMaxWordChars;
	for (size_t at = 0; found && at < word.size();) {
		size_t longest = 0;
		uint32_t best = kNoToken;
		(at == 0 ? begin_ : inside_).each_prefix(word.substr(at), [&](size_t n, uint32_t id) {
			longest = n;
			best = id;
		});
		found = longest > 0;
		if (found) out.push_back(best);
		at += longest;
	}
	if (found) return;
	if (v.unknown == kNoToken)
		fail(Code::Invalid, "{}: the vocabulary has no tokens for a word, and no unknown token", v.file);
	out.resize(known);
	out.push_back(v.unknown);
}

void Wpm::encode(const Vocab& v, std::string_view text, std::vector<uint32_t>& out) const {
	BertWords words(text, rules_);
	while (const auto w = words.next()) word(v, *w, out);
}

} // namespace kvrun
