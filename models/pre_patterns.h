// The patterns of all known pre-tokenizers, by the names used in files.
#pragma once
#include <string>
#include <string_view>

namespace kvrun {

constexpr size_t kMaxPrePatterns = 6;

struct PrePatterns {
	const char* names;                     // values of tokenizer.ggml.pre that share the patterns, separated by spaces
	const char* patterns[kMaxPrePatterns]; // PCRE2, applied in order; nullptr ends the list
	bool whole_words, adds_bos;            // as in PreTokenizer
	bool composes = false;                 // characters are composed first (NFC)
	bool parts_pairs = false;              // files without the key put a separator between the texts of a pair
};

const PrePatterns* find_pre_patterns(std::string_view name); // nullptr: unknown
std::string pre_pattern_names();                             // all of them, separated by spaces

} // namespace kvrun
