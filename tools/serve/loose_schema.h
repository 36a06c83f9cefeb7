// Grammars of JSON schemas that have keywords which grammars do not enforce: those are left out, and the log says so.
#pragma once
#include "tools/serve/fields.h"
#include "tools/serve/model.h"

namespace kvrun::serve {

// As Model::new_grammar(). Strict rules leave out nothing; nor is a keyword left out without which the schema says
// something else. Throws ApiError.
GrammarHandle loose_grammar(const Model&, kvrun_grammar_options, const ChatPrompt* prompt, const char* field,
                            const Rules&);

// Takes out of the schema what the message of a refusal is about; returns what that was, empty: nothing.
std::string leave_out(Json& schema, const std::string& message);

} // namespace kvrun::serve
