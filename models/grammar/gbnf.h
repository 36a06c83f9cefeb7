// Grammars as text, in the notation of llama.cpp (GBNF).
#pragma once
#include "models/grammar/automaton.h"
#include <functional>

namespace kvrun::grammar {

// name ::= "text" [a-z] [^x] . other-name ( ... | ... ) x* x+ x? x{2} x{2,} x{2,5} <control-token> # comment
// The answer is the rule `root`. token: the bytes that stand for a token, by its name with < and >. Throws
// Error{Format} with line and column, Error{Unsupported} where it is too large.
Rules parse_gbnf(std::string_view text, const std::function<std::string(std::string_view)>& token = control_bytes);

} // namespace kvrun::grammar
