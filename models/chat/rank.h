// What a reranker reads: a query and a document, as tokens.
#pragma once
#include "models/tokenizer.h"

namespace kvrun {

struct TextPair {
	std::vector<uint32_t> tokens;
	uint32_t second = UINT32_MAX; // tokens from here on are of the document
};

class RankPrompt {
 public:
	explicit RankPrompt(const Gguf&); // reads tokenizer.chat_template.rerank, if the file has it
	// By the template, in which {query} and {document} stand for the texts; else, each part where the file says so,
	// BOS, query, EOS, separator, document, and EOS or the separator. The texts never become control tokens.
	TextPair encode(const Tokenizer&, std::string_view query, std::string_view document) const;

 private:
	TextPair by_template(const Tokenizer&, std::string_view query, std::string_view document) const;
	std::string template_;
};

} // namespace kvrun
