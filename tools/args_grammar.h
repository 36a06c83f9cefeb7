// Options that hold an answer to a form: --grammar, --json-schema.
#pragma once
#include "tools/args.h"

namespace kvrun {

struct GrammarArgs {
	std::string grammar, json_schema; // as given: a file, or the text itself; empty: none

	bool given() const { return !grammar.empty() || !json_schema.empty(); }
	// The texts. Throw Error where both are given, or what is given is neither a file nor such a text.
	std::string gbnf() const;
	std::string schema() const;
};
void add_grammar_options(Command&, GrammarArgs&, const char* group);

} // namespace kvrun
