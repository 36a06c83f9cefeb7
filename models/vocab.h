// The token list of a GGUF file: texts, kinds, scores, and tokens with a role; checked when it is read.
#pragma once
#include "models/tokenizer.h"
#include <array>
#include <unordered_map>

namespace kvrun {

constexpr uint32_t kNoToken = UINT32_MAX;
constexpr uint64_t kMaxVocab = uint64_t(1) << 20;        // tokens
constexpr uint64_t kMaxVocabBytes = uint64_t(16) << 20;  // texts of all tokens together
constexpr uint64_t kMaxTokenBytes = 4096;                // text of one token; real ones have a few hundred at most
constexpr uint64_t kMaxSpecialBytes = uint64_t(1) << 20; // texts of all control and user-defined tokens together

enum class VocabModel : uint8_t {
	Spm,       // SentencePiece-style: neighbours with the best joint score are joined
	SpmMerges, // the same with a list of merges instead of scores
	Bpe,       // byte-level BPE
	Wpm,       // WordPiece
	Ugm,       // SentencePiece's unigrams
	Plamo,     // unigrams with whole scores (PLaMo 2 and 3)
	Longest,   // the longest token at each place, of strings of bytes: RWKV's World tokenizer
};

// Three faults of files are repaired, and each is logged once: an empty text is never matched; of tokens with equal
// texts, encoding uses the first; end-of-turn markers of kind Normal become control tokens. Other faults are refused.
struct Vocab {
	explicit Vocab(const Gguf&);
	Vocab(const Vocab&) = delete;
	Vocab& operator=(const Vocab&) = delete;

	uint32_t size() const { return uint32_t(texts.size()); }
	uint32_t find(std::string_view text) const; // kNoToken if there is none
	// The same without control, unknown and byte tokens.
	uint32_t find_word(std::string_view text) const;
	// Spaces are U+2581 in texts of tokens.
	bool has_marks() const {
		return model == VocabModel::Spm || model == VocabModel::SpmMerges || model == VocabModel::Ugm;
	}
	// Tokens <0x00> to <0xFF> stand for bytes.
	bool has_bytes() const { return has_marks() || model == VocabModel::Plamo; }
	bool is_special(uint32_t id) const {
		return kinds[id] == TokenKind::Control || kinds[id] == TokenKind::Unknown ||
		       kinds[id] == TokenKind::UserDefined;
	}

	std::string file;                    // for messages
	std::vector<char> pool;              // all texts, back to back
	std::vector<std::string_view> texts; // (vocab) into pool
	size_t longest = 0;                  // bytes of the longest text
	std::vector<TokenKind> kinds;        // (vocab)
	std::vector<float> scores;           // (vocab), empty without a use for them
	std::unordered_map<std::string_view, uint32_t, TextHash> by_text;
	std::array<uint32_t, 256> byte_tokens; // token of each single byte (has_bytes()), or kNoToken
	std::vector<int16_t> byte_values;      // (vocab) the byte of a Byte token, else -1; empty when there are none
	uint32_t bos = kNoToken, eos = kNoToken, sep = kNoToken, unknown = kNoToken; // WordPiece: CLS is bos
	// ascending: tokens that end an answer
	std::vector<uint32_t> ends;
	std::vector<uint32_t> suppressed; // tokens that an answer never has
	VocabModel model = VocabModel::Bpe;

 private:
	void read_texts(const Gguf&);
	void read_kinds(const Gguf&);
	void read_scores(const Gguf&);
	void read_bytes();
	void read_named(const Gguf&);
	void read_suppressed(const Gguf&);
	void usual_ids(const Gguf&);
	uint32_t read_id(const Gguf&, const char* key) const;
};

} // namespace kvrun
