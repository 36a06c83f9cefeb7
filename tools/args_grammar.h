// Options that constrain the form of an answer: --grammar, --json-schema.
#pragma once
#include "tools/args.h"

namespace kvrun {

struct GrammarArgs {
	std::string grammar, json_schema; // as given: a file name or the text itself; empty if absent

	bool given() const { return !grammar.empty() || !json_schema.empty(); }
	// The texts. Throw Error if both are given, or if the value is neither a file nor a text of this kind.
	std::string gbnf() const;
	std::string schema() const;
};
void add_grammar_options(Command&, GrammarArgs&, const char* group);

} // namespace kvrun
