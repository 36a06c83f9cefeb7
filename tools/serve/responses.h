// OpenAI's Responses API: converts its requests to conversations, and answers to its items and events.
#pragma once
#include "tools/serve/answers.h"

namespace kvrun::serve {

struct ResponseRequest {
	ChatRequest chat;
	Json asked; // request fields that the response repeats
};
// Throws ApiError 400 that names the field.
ResponseRequest response_request(Json body, const Defaults&);

std::shared_ptr<Listener> response_answer(std::shared_ptr<Responder>, const ResponseRequest&, const std::string& model,
                                          ReplyHandle, CountTokens);

} // namespace kvrun::serve
