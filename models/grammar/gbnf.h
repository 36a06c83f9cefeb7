// Grammars in llama.cpp's notation (GBNF).
#pragma once
#include "models/grammar/automaton.h"
#include <functional>

namespace kvrun::grammar {

// name ::= "text" [a-z] [^x] . other-name ( ... | ... ) x* x+ x? x{2} x{2,} x{2,5} <control-token> # comment
// The answer is the rule `root`. token: returns the bytes for a token by its name, < and > included. Throws
// Error{Format} with line and column, or Error{Unsupported} if the grammar is too large.
Rules parse_gbnf(std::string_view text, const std::function<std::string(std::string_view)>& token = control_bytes);

} // namespace kvrun::grammar
