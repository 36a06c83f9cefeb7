// Calls, and tools, as text of messages: for templates that have no place for them.
#pragma once
#include "models/chat/features.h"

namespace kvrun {

// written_calls: the calls of earlier answers go to the end of their text, in the form of the answers. Its markers
// count as the template's own text. written_tools: the definitions, and how to call, go into the system message; with
// both, results go into messages of the user. Nothing changes in a conversation without tools.
void write_tools(const ChatFeatures&, ChatInput&);

} // namespace kvrun
