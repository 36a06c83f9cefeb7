// The replacements of a SentencePiece normalizer, as the model's file has them: NFKC, white space, control characters.
#pragma once
#include "models/gguf.h"
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

// The file has a double array (of darts-clone) whose keys are sequences of bytes, and behind it the texts that replace
// them, each ended by a zero byte. Everything that a walk does not check itself is checked when the file is read.
class Charsmap {
 public:
	explicit Charsmap(const Gguf&); // without the key: no replacements

	struct Hit {
		size_t bytes;          // of the text are replaced; 0: there is no replacement
		std::string_view text; // by these
	};
	Hit longest(std::string_view text) const; // the longest key that `text` begins with

 private:
	uint32_t unit(size_t at) const { return at < units_.size() ? units_[at] : 0; } // 0 has no children
	std::vector<uint32_t> units_;
	std::string texts_; // ends with a zero byte
};

} // namespace kvrun
