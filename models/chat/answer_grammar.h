// What an answer to a conversation may look like: reasoning, then a text as asked for, or calls of tools in the form
// that the model's template writes.
#pragma once
#include "models/chat/features.h"
#include "models/grammar/grammar.h"

namespace kvrun {

class Tokenizer;

struct AnswerRules {
	std::string gbnf;          // of the text; empty: none
	Json schema;               // of the text as JSON; null: none
	Json tools;                // as in ChatInput; null: none
	std::string tool_choice;   // "auto" or "", "required", "none", or a function's name
	bool one_call = false;     // at most one
	ChatFeatures features;     // of the template; of a grammar without a conversation: none
	bool in_reasoning = false; // the prompt ends inside it
};

// Null: nothing is ruled out. Throws Error{Invalid} where tools and choice do not agree, and what parse_gbnf() and
// add_schema() throw.
std::shared_ptr<grammar::Grammar> answer_grammar(const AnswerRules&, const Tokenizer&,
                                                 std::shared_ptr<const grammar::TokenTrie>);

} // namespace kvrun
