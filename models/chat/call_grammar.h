// Calls of tools as rules of a grammar, in the form that each family's template writes them.
#pragma once
#include "models/chat/features.h"
#include "models/grammar/rules.h"
#include <functional>

namespace kvrun {

struct CallRules {
	const ChatFeatures& features;
	const Json& tools; // that may be called
	bool one_call;     // exactly one; else one or more
	// The bytes of a marker, control tokens in it as grammars have them.
	std::function<std::string(std::string_view)> marker;
};

// An answer that is calls, from the first marker to the last. Throws Error{Unsupported} for a format that is not known,
// and where the parameters of a function with "strict": true are a schema that is not supported; those of others are
// then any object.
grammar::ExprId add_calls(grammar::Rules&, const CallRules&);
// What calls begin with, where the format has a marker.
std::string call_marker(const ChatFeatures&);

} // namespace kvrun
