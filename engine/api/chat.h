// Conversations of the C API: data that other parts of the API use.
#pragma once
#include "engine/api/objects.h"
#include "models/chat/features.h"

namespace kvrun::api {

struct ChatFacts {
	ChatFeatures features;
	bool in_reasoning = false; // the prompt ends inside the reasoning
	bool may_reason = false;   // the answer may begin with reasoning
	Json tools;                // null: none
};
ChatFacts chat_facts(const Engine&, const kvrun_chat_options*);

Json parse_json(const char* text, const char* name); // null: text is NULL

} // namespace kvrun::api
