// The grammar of an answer to a conversation: reasoning, then a text in the requested form, or calls of tools in the
// form of the model's template.
#pragma once
#include "models/chat/features.h"
#include "models/grammar/grammar.h"
#include "models/grammar/schema.h"

namespace kvrun {

class Tokenizer;

struct AnswerRules {
	std::string gbnf;          // grammar of the text; empty: none
	Json schema;               // schema of the text as JSON; null: none
	grammar::LeftOut left_out; // of that schema, as of add_schema()
	Json tools;                // as in ChatInput; null: none
	std::string tool_choice;   // "auto" or "", "required", "none", or a function's name
	bool one_call = false;     // at most one call
	ChatFeatures features;     // of the template; defaults for a grammar without a conversation
	bool in_reasoning = false; // the prompt ends inside the reasoning
	bool may_reason = false;   // the answer may begin with reasoning, between the template's markers
};

// Null: every answer is allowed. Throws Error{Invalid} if tools and tool_choice contradict each other, and what
// parse_gbnf() and add_schema() throw.
std::shared_ptr<grammar::Grammar> answer_grammar(const AnswerRules&, const Tokenizer&,
                                                 std::shared_ptr<const grammar::TokenTrie>);

} // namespace kvrun
