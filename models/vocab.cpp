// The token list of a GGUF file.
#include "models/vocab.h"
#include "engine/core/log.h"
#include "engine/core/utf8.h"
#include "models/longest.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

// Texts of tokens that end a turn or the text; files do not always name their ids.
constexpr std::string_view kEndTexts[] = {"<|eot_id|>",
                                          "<|eom_id|>",
                                          "<|im_end|>",
                                          "<|end|>",
                                          "<|eot|>",
                                          "<|eom|>",
                                          "<|endoftext|>",
                                          "<|end_of_text|>",
                                          "<end_of_turn>",
                                          "<｜end▁of▁sentence｜>",
                                          "<end_of_utterance>",
                                          "<turn|>",
                                          "<|tool_response>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<|calls|>", // Solar Open's
                                          "<|flush|>",
                                          "<|fim_pad|>", // the rest of a project behind an answer in its middle
                                          "<fim-pad>",
                                          "<fim_pad>",
                                          "<|fim_repo|>",
                                          "<|repo_name|>",
                                          "<fim-repo>",
                                          "<reponame>",
                                          "<|file_sep|>",
                                          "[EOT]",
                                          "[EOS]",
                                          "[e~[",
                                          "<EOT>",
                                          "_<EOT>"};
// The same where they are control tokens: elsewhere they are markup.
constexpr std::string_view kControlEnds[] = {"</s>", "<eos>"};

int hex_digit(char c) {
	if (c >= '0' && c <= '9') return c - '0';
	if (c >= 'A' && c <= 'F') return c - 'A' + 10;
	if (c >= 'a' && c <= 'f') return c - 'a' + 10;
	return -1;
}

// The byte of a text like <0x0A>, or -1.
int byte_of(std::string_view t) {
	if (t.size() != 6 || !t.starts_with("<0x") || t[5] != '>') return -1;
	const int high = hex_digit(t[3]), low = hex_digit(t[4]);
	return high < 0 || low < 0 ? -1 : high * 16 + low;
}

} // namespace

Vocab::Vocab(const Gguf& g) : file(g.name()) {
	constexpr std::pair<std::string_view, VocabModel> kModels[] = {
	    {"llama", VocabModel::Spm},   {"gemma4", VocabModel::SpmMerges}, {"gpt2", VocabModel::Bpe},
	    {"bert", VocabModel::Wpm},    {"t5", VocabModel::Ugm},           {"plamo2", VocabModel::Plamo},
	    {"rwkv", VocabModel::Longest}};
	const std::string_view name = g.text("tokenizer.ggml.model");
	const auto known = std::find_if(std::begin(kModels), std::end(kModels), [&](auto& m) { return m.first == name; });
	if (known == std::end(kModels))
		fail(Code::Unsupported,
		     "{}: tokenizer is {}; kvrun knows llama (SentencePiece-style), gemma4 (the same with merges), gpt2 "
		     "(byte-level BPE), bert (WordPiece), t5 (unigrams), plamo2 (PLaMo's) and rwkv (the longest token)",
		     file, one_line(name));
	model = known->second;
	read_texts(g);
	read_kinds(g);
	if (model == VocabModel::Spm || model == VocabModel::Ugm || model == VocabModel::Plamo) read_scores(g);
	if (has_bytes()) read_bytes();
	read_named(g);
}

void Vocab::read_texts(const Gguf& g) {
	const char* key = "tokenizer.ggml.tokens";
	const GgufEntry* e = g.find(key);
	if (e && (e->count == 0 || e->count > kMaxVocab))
		fail(Code::Format, "{}: key {} has {} tokens, expected 1 to {}; the file is damaged", file, key, e->count,
		     kMaxVocab);
	std::vector<std::string_view> stored = g.texts(key);
	std::vector<std::string> plain; // without escapes
	for (size_t i = 0; i < stored.size() && model == VocabModel::Longest; ++i)
		plain.push_back(unescaped_token(stored[i]));
	std::ranges::copy(plain, stored.begin());
	size_t bytes = 0, doubles = 0;
	for (size_t i = 0; i < stored.size(); ++i) {
		bytes += stored[i].size();
		longest = std::max(longest, stored[i].size());
		if (stored[i].size() > kMaxTokenBytes)
			fail(Code::Format, "{}: key {}: token {}, '{}', has {} bytes, at most {} are accepted; the file is damaged",
			     file, key, i, one_line(stored[i], 40), stored[i].size(), kMaxTokenBytes);
	}
	if (bytes > kMaxVocabBytes)
		fail(Code::Format, "{}: key {} has {} bytes of text, at most {} are accepted; the file is damaged", file, key,
		     bytes, kMaxVocabBytes);
	pool.reserve(bytes); // keeps views into it valid
	texts.reserve(stored.size());
	by_text.reserve(stored.size());
	for (std::string_view t : stored) {
		const size_t at = pool.size();
		pool.insert(pool.end(), t.begin(), t.end());
		texts.emplace_back(pool.data() + at, t.size());
		if (!t.empty() && !by_text.emplace(texts.back(), uint32_t(texts.size() - 1)).second) ++doubles;
	}
	if (doubles > 0)
		warn_once(fmt::format("{}: {} tokens repeat the text of another; the first of each is used", file, doubles));
}

void Vocab::read_kinds(const Gguf& g) {
	const char* key = "tokenizer.ggml.token_type";
	kinds.assign(size(), TokenKind::Normal);
	if (!g.find(key)) return;
	const std::vector<int64_t> stored = g.ints(key);
	if (stored.size() != size())
		fail(Code::Format, "{}: key {} has {} elements, there are {} tokens; the file is damaged", file, key,
		     stored.size(), size());
	for (uint32_t i = 0; i < size(); ++i) {
		if (stored[i] < 0 || stored[i] > int64_t(TokenKind::Byte))
			fail(Code::Format, "{}: key {}: token {} has type {}, known are 1..6; the file is damaged", file, key, i,
			     stored[i]);
		if (stored[i] != 0) kinds[i] = TokenKind(stored[i]); // 0: unspecified
	}
}

void Vocab::read_scores(const Gguf& g) {
	const char* key = "tokenizer.ggml.scores";
	scores = g.floats(key);
	if (scores.size() != size())
		fail(Code::Format, "{}: key {} has {} elements, there are {} tokens; the file is damaged", file, key,
		     scores.size(), size());
	for (uint32_t i = 0; i < size(); ++i)
		if (!std::isfinite(scores[i]))
			fail(Code::Format, "{}: key {}: token {} has score {}; the file is damaged", file, key, i, scores[i]);
}

void Vocab::read_bytes() {
	byte_tokens.fill(kNoToken);
	byte_values.assign(size(), -1);
	for (uint32_t i = 0; i < size(); ++i) {
		if (kinds[i] != TokenKind::Byte) continue;
		const int b = byte_of(texts[i]);
		if (b < 0)
			fail(Code::Format, "{}: byte token {} is '{}', expected <0x00> to <0xFF>; the file is damaged", file, i,
			     one_line(texts[i], 40));
		byte_values[i] = int16_t(b);
		if (byte_tokens[size_t(b)] == kNoToken) byte_tokens[size_t(b)] = i;
	}
}

uint32_t Vocab::read_id(const Gguf& g, const char* key) const {
	if (!g.find(key)) return kNoToken;
	const uint32_t id = g.u32(key);
	if (id < size()) return id;
	warn_once(fmt::format("{}: key {} is {}, there are {} tokens; it is ignored", file, key, id, size()));
	return kNoToken;
}

// Ids that the file does not name.
void Vocab::usual_ids(const Gguf& g) {
	const auto at_place = [&](uint32_t& id, uint32_t place, TokenKind kind) {
		if (id == kNoToken && place < size() && kinds[place] == kind) id = place;
	};
	const auto by_name = [&](uint32_t& id, std::string_view text) {
		if (id == kNoToken) id = find(text);
		if (id != kNoToken && kinds[id] == TokenKind::Normal) kinds[id] = TokenKind::Control; // files without kinds
	};
	switch (model) {
	case VocabModel::Spm: // SentencePiece's defaults
	case VocabModel::Plamo:
		at_place(unknown, 0, TokenKind::Unknown);
		at_place(bos, 1, TokenKind::Control);
		at_place(eos, 2, TokenKind::Control);
		break;
	case VocabModel::Ugm: // T5's
		at_place(eos, 1, TokenKind::Control);
		for (uint32_t id = 0; id < size(); ++id) at_place(unknown, id, TokenKind::Unknown); // the only one
		break;
	case VocabModel::Wpm:
		if (const uint32_t cls = read_id(g, "tokenizer.ggml.cls_token_id"); cls != kNoToken) bos = cls;
		by_name(bos, "[CLS]");
		by_name(sep, "[SEP]");
		by_name(unknown, "[UNK]");
		break;
	case VocabModel::Longest: at_place(eos, 0, TokenKind::Control); break; // ends a text
	case VocabModel::SpmMerges:
	case VocabModel::Bpe: break;
	}
}

void Vocab::read_suppressed(const Gguf& g) {
	constexpr const char* key = "tokenizer.ggml.suppress_tokens";
	constexpr size_t kMost = 1024;
	if (!g.find(key)) return;
	for (const int64_t id : g.ints(key))
		if (id >= 0 && uint64_t(id) < size()) suppressed.push_back(uint32_t(id));
	if (suppressed.size() > kMost)
		fail(Code::Format, "{}: key {} has {} tokens, at most {} are accepted; the file is damaged", file, key,
		     suppressed.size(), kMost);
}

void Vocab::read_named(const Gguf& g) {
	bos = read_id(g, "tokenizer.ggml.bos_token_id");
	eos = read_id(g, "tokenizer.ggml.eos_token_id");
	sep = read_id(g, "tokenizer.ggml.seperator_token_id"); // spelt so in files
	unknown = read_id(g, "tokenizer.ggml.unknown_token_id");
	usual_ids(g);
	ends = {eos, read_id(g, "tokenizer.ggml.eot_token_id"), read_id(g, "tokenizer.ggml.eom_token_id")};
	for (std::string_view t : kEndTexts) {
		const uint32_t id = find(t);
		if (id == kNoToken) continue;
		kinds[id] = TokenKind::Control;
		ends.push_back(id);
	}
	const auto has = [&](const char* text) { return find(text) != kNoToken; };
	for (std::string_view t : kControlEnds)
		if (const uint32_t id = find(t); id != kNoToken && kinds[id] == TokenKind::Control && !has("<|tool_response>"))
			ends.push_back(id);
	// In answers of gpt-oss and Solar Open <|end|> ends a message, for example of reasoning, and others follow.
	if ((has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>")))
		std::erase(ends, find("<|end|>"));
	read_suppressed(g);
	std::sort(ends.begin(), ends.end());
	ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
	if (ends.back() == kNoToken) ends.pop_back(); // kNoToken sorts last
}

uint32_t Vocab::find(std::string_view text) const {
	const auto i = by_text.find(text);
	return i == by_text.end() ? kNoToken : i->second;
}

uint32_t Vocab::find_word(std::string_view text) const {
	const uint32_t id = find(text);
	if (id == kNoToken) return kNoToken;
	const TokenKind k = kinds[id];
	return k == TokenKind::Control || k == TokenKind::Unknown || k == TokenKind::Byte ? kNoToken : id;
}

} // namespace kvrun
