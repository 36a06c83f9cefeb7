// Calls of tools as rules of a grammar, in the form of each family's template.
#pragma once
#include "models/chat/features.h"
#include "models/grammar/rules.h"
#include <functional>

namespace kvrun {

struct CallRules {
	const ChatFeatures& features;
	const Json& tools; // those that may be called
	bool one_call;     // exactly one; else one or more
	// Returns the bytes of a marker, with control tokens as in grammars (control_bytes()).
	std::function<std::string(std::string_view)> marker;
};

// An answer that consists of calls, from the first marker to the last. Throws Error{Unsupported} for an unknown format,
// and for an unsupported schema of parameters if the function has "strict": true; otherwise any object is then allowed.
grammar::ExprId add_calls(grammar::Rules&, const CallRules&);
// The marker before calls; empty if the format has none.
std::string call_marker(const ChatFeatures&);

} // namespace kvrun
