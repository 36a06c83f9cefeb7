// Anthropic's Messages API: its requests as conversations, answers as its blocks and events.
#pragma once
#include "tools/serve/requests.h"

namespace kvrun::serve {

struct MessagesRequest {
	ChatRequest chat;
	std::vector<std::string> stops; // stop_sequences
};
// counting: only prompt tokens are to be counted, so max_tokens may be missing. Throws ApiError 400 that names the
// field.
MessagesRequest messages_request(Json body, const Defaults&, bool counting);

constexpr const char* kMessagesPath = "/v1/messages"; // paths of this API begin so

// An error in the form of this API: {"type": "error", "error": {"type", "message", ...}}.
Response messages_error(const ApiError&);

// prompt_tokens: number of tokens of the conversation.
std::shared_ptr<Listener> messages_answer(std::shared_ptr<Responder>, const MessagesRequest&, const std::string& model,
                                          ReplyHandle, uint32_t prompt_tokens);

} // namespace kvrun::serve
