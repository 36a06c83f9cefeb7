// The patterns of every pre-tokenizer kvrun knows, by the names files use.
#pragma once
#include <string>
#include <string_view>

namespace kvrun {

constexpr size_t kMaxPrePatterns = 6;

struct PrePatterns {
	const char* names;                     // of tokenizer.ggml.pre, separated by spaces; models that share the patterns
	const char* patterns[kMaxPrePatterns]; // PCRE2, applied one after the other; nullptr ends the list
	bool whole_words, adds_bos;            // as in PreTokenizer
};

const PrePatterns* find_pre_patterns(std::string_view name); // nullptr: unknown
std::string pre_pattern_names();                             // all of them, separated by spaces

} // namespace kvrun
