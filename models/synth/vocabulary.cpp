// A vocabulary of any size for a synthetic model.
#include "models/synth/vocabulary.h"

namespace kvrun {
namespace {

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6; // token types of GGUF

constexpr std::string_view kConsonants = "bcdfghjklmnprstvwz", kVowels = "aeiou";
constexpr uint32_t kSyllables = 90;

std::string syllable(uint32_t i) { return {kConsonants[i / 5], kVowels[i % 5]}; }

struct Word { // 1 to 3 syllables, optionally with a space before; the result of joining two tokens
	std::string left, right;
	std::string text() const { return left + right; }
};
// Word number i, in order of length; `space`: the vocabulary's text for a space.
Word word(uint32_t i, const std::string& space) {
	if (i < kSyllables) return {syllable(i).substr(0, 1), syllable(i).substr(1)};
	if ((i -= kSyllables) < kSyllables) return {space, syllable(i)};
	i -= kSyllables;
	constexpr uint32_t kPairs = kSyllables * kSyllables;
	const auto pair = [](uint32_t n) { return Word{syllable(n / kSyllables), syllable(n % kSyllables)}; };
	if (i < kPairs) return pair(i);
	if ((i -= kPairs) < kPairs) return {space, pair(i).text()};
	i -= kPairs;
	return {pair(i / kSyllables).text(), syllable(i % kSyllables)}; // 729000 words: more than any vocabulary needs
}

// The character that byte-level BPE writes for a byte; visible Latin-1 characters are unchanged.
std::string byte_character(uint32_t b) {
	const auto visible = [](uint32_t c) { return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174; };
	uint32_t code = b;
	if (!visible(b)) {
		code = 256;
		for (uint32_t c = 0; c < b; ++c) code += !visible(c);
	}
	if (code < 128) return std::string(1, char(code));
	return {char(0xc0 | code >> 6), char(0x80 | (code & 63))};
}

void add(SynthTokens& t, std::string text, int32_t kind) {
	t.texts.push_back(std::move(text));
	t.kinds.push_back(kind);
}

SynthTokens spm_tokens(uint32_t vocab) {
	SynthTokens t;
	add(t, "<unk>", kUnknown);
	add(t, "<s>", kControl);
	add(t, "</s>", kControl);
	for (uint32_t b = 0; b < 256; ++b) add(t, fmt::format("<0x{:02X}>", b), kByte);
	const std::string space = "\xe2\x96\x81";
	add(t, space, kNormal);
	for (char c = 33; c < 127; ++c) add(t, std::string(1, c), kNormal);
	for (uint32_t i = 0; t.texts.size() < vocab; ++i) add(t, word(i, space).text(), kNormal);
	t.bos = 1, t.eos = 2, t.adds_bos = true;
	return t;
}

SynthTokens bpe_tokens(uint32_t vocab, const std::vector<std::string>& control) {
	SynthTokens t;
	for (uint32_t b = 0; b < 256; ++b) add(t, byte_character(b), kNormal);
	const std::string space = byte_character(' ');
	for (uint32_t i = 0; t.texts.size() < vocab - control.size(); ++i) {
		const Word w = word(i, space);
		add(t, w.text(), kNormal);
		t.merges.push_back(w.left + " " + w.right);
	}
	for (const std::string& c : control) add(t, c, kControl);
	return t;
}

} // namespace

SynthTokens synth_tokens(SynthVocab kind, uint32_t vocab) {
	if (kind == SynthVocab::Spm) return spm_tokens(vocab);
	const bool llama = kind == SynthVocab::Llama3;
	SynthTokens t = llama ? bpe_tokens(vocab, {"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"})
	                      : bpe_tokens(vocab, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
	t.bos = vocab - 3, t.eos = llama ? vocab - 2 : vocab - 1;
	t.adds_bos = llama;
	return t;
}

} // namespace kvrun
