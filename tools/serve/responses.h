// OpenAI's Responses API: its requests as conversations, answers as its items and events.
#pragma once
#include "tools/serve/requests.h"

namespace kvrun::serve {

struct ResponseRequest {
	ChatRequest chat;
	Json asked; // fields of the response that repeat what was asked for
};
// Throws ApiError 400 that names the field.
ResponseRequest response_request(Json body, const std::string& default_kv);

// count: tokens of a text.
std::shared_ptr<Listener> response_answer(std::shared_ptr<Responder>, const ResponseRequest&, const std::string& model,
                                          ReplyHandle, std::function<size_t(const std::string&)> count);

} // namespace kvrun::serve
