// Splits text into the pieces byte-level BPE works on, by the patterns the model was trained with.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

class PreTokenizer {
 public:
	// `name` is tokenizer.ggml.pre; `file` is for the message when it is not known.
	PreTokenizer(std::string_view name, const std::string& file);
	PreTokenizer(PreTokenizer&&) noexcept;
	PreTokenizer& operator=(PreTokenizer&&) noexcept;
	~PreTokenizer();

	// Pieces in order; together they are `text`. Bytes that are not UTF-8 are pieces between characters.
	std::vector<std::string_view> split(std::string_view text) const;
	bool whole_words() const { return whole_words_; } // a piece that is a token is that token, whatever the merges say
	bool adds_bos() const { return adds_bos_; }       // unless the file says otherwise

 private:
	struct Pattern;
	std::vector<std::unique_ptr<Pattern>> patterns_; // each splits what the one before left
	bool whole_words_ = false, adds_bos_ = false;
};

} // namespace kvrun
