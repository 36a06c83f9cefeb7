// The words of a text as BERT's tokenizer sees them: cleaned, lower-cased, without accents; punctuation apart.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct BertRules {
	bool lowercase = true;
	bool strip_accents = true; // decompose characters and drop their combining marks
};

// Goes through one text from left to right. Control characters, U+FFFD and bytes that are not UTF-8 are dropped, and do
// not end a word.
class BertWords {
 public:
	BertWords(std::string_view text, BertRules rules) : text_(text), rules_(rules) {}
	std::optional<std::string_view> next(); // valid until the next call

 private:
	bool fill();
	void add(int32_t c);
	const std::string_view text_;
	const BertRules rules_;
	size_t at_ = 0;            // of the text: where the run ends
	std::vector<int32_t> run_; // characters between white space
	size_t used_ = 0;          // of the run
	bool reorder_ = false;     // the run has marks whose order may not be canonical
	std::string word_;
};

} // namespace kvrun
