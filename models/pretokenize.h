// Splits text into pieces for byte-level BPE, by the patterns that the model was trained with.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

class PreTokenizer {
 public:
	// `name` is tokenizer.ggml.pre; `file` is for the message if the name is unknown.
	PreTokenizer(std::string_view name, const std::string& file);
	PreTokenizer(PreTokenizer&&) noexcept;
	PreTokenizer& operator=(PreTokenizer&&) noexcept;
	~PreTokenizer();

	// Pieces in order; concatenated they are `text`. Bytes that are not UTF-8 become pieces of their own.
	std::vector<std::string_view> split(std::string_view text) const;
	bool whole_words() const { return whole_words_; } // a piece that equals a token becomes that token, without merges
	bool adds_bos() const { return adds_bos_; }       // unless the file says otherwise
	bool parts_pairs() const { return parts_pairs_; } // a separator stands between two texts, likewise
	// Whether texts are composed() before they are split.
	bool composes() const { return composes_; }

 private:
	struct Pattern;
	std::vector<std::unique_ptr<Pattern>> patterns_; // each splits the pieces of the previous one
	bool whole_words_ = false, adds_bos_ = false, composes_ = false, parts_pairs_ = false;
};

// Unicode's NFC; a text that is not UTF-8 stays as it is.
std::string composed(std::string_view text);

} // namespace kvrun
