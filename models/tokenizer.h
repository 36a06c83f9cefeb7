// Text <-> token ids from the metadata of a GGUF file: SentencePiece-style and byte-level BPE vocabularies, RWKV's, and
// those of text encoders, WordPiece and unigrams.
#pragma once
#include "models/gguf.h"
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct EncodeOptions {
	bool bos = true;      // begin with BOS if the model wants it (Tokenizer::adds_bos)
	bool eos = false;     // end with EOS or SEP if the file says so (Tokenizer::text_end): texts that are embedded
	bool special = false; // control tokens written in the text become ids; for templates, never for a user's words
};

struct TextRange { // bytes [begin, end) of a text
	size_t begin, end;
};

enum class TokenKind : uint8_t { Normal = 1, Unknown, Control, UserDefined, Unused, Byte }; // as stored in the file

class Tokenizer {
 public:
	static constexpr size_t kMaxText = size_t(64) << 20; // largest text of one encode(), in bytes

	explicit Tokenizer(const Gguf&); // copies what it needs
	Tokenizer(Tokenizer&&) noexcept;
	Tokenizer& operator=(Tokenizer&&) noexcept;
	~Tokenizer();

	std::vector<uint32_t> encode(std::string_view text, EncodeOptions = {}) const;
	// Like encode() with `special`, but a control token counts only if its whole text lies inside one of `ranges`
	// (ascending, disjoint). Otherwise its text is ordinary text, whose tokens do not depend on borders of ranges.
	std::vector<uint32_t> encode_ranges(std::string_view text, std::span<const TextRange> ranges,
	                                    bool bos = true) const;
	// Text of all ids; control tokens have none unless `special`. decode(encode(x)) == x for any bytes x, except that a
	// SentencePiece vocabulary turns U+2581 into a space. WordPiece and unigram vocabularies normalize the text, and
	// lose what they have no tokens for.
	std::string decode(std::span<const uint32_t> ids, bool special = false) const;
	// Bytes that `id` adds after token `prev` (empty: at the start of a text). They may end inside a UTF-8 character:
	// see Utf8Stream. Throws Error{Invalid} for an id outside the vocabulary.
	std::string decode_one(std::optional<uint32_t> prev, uint32_t id, bool special = false) const;

	uint32_t vocab() const;                   // number of tokens
	const char* model() const;                // "spm", "bpe", "wpm", "ugm", "plamo2" or "rwkv"
	std::string_view pre() const;             // pre-tokenizer of a bpe vocabulary; empty for others
	std::string_view text(uint32_t id) const; // as stored in the file; of a rwkv vocabulary without escapes
	TokenKind kind(uint32_t id) const;
	std::optional<uint32_t> find(std::string_view text) const; // id of the token stored as `text`
	std::optional<uint32_t> bos() const, eos() const, sep() const;
	bool adds_bos() const; // the model wants BOS first; in a WordPiece vocabulary that is CLS
	// What ends texts to embed, if something does: EOS, or SEP in a WordPiece vocabulary; and what stands behind that
	// between the two texts of a pair.
	std::optional<uint32_t> text_end() const, between_pairs() const;
	std::span<const uint32_t> suppressed() const; // tokens that the file says are never to be chosen
	bool is_end(uint32_t id) const;               // ends an answer: EOS, and the end-of-turn tokens
	std::vector<uint32_t> end_ids() const;        // ascending
	std::string_view chat_template() const;       // Jinja source; empty if the file has none

 private:
	struct Model;
	std::unique_ptr<Model> model_;
};

// Turns the bytes of successive tokens into whole UTF-8 characters: it keeps the first bytes of a character until the
// rest arrives. Bytes that cannot begin or continue a character pass unchanged.
class Utf8Stream {
 public:
	std::string push(std::string_view bytes); // returns complete characters
	std::string finish();                     // returns the bytes that were kept; empties the stream

 private:
	std::string held_; // at most 3 bytes
};

} // namespace kvrun
