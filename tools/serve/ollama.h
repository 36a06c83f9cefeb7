// Ollama's API: its requests as conversations and completions, answers as lines of JSON.
#pragma once
#include "tools/serve/embeddings.h"

namespace kvrun::serve {

constexpr const char* kOllamaPath = "/api/"; // paths of this API begin so

// Bodies of /api/chat and /api/generate in the form of OpenAI's chats or completions; the answer is a stream unless the
// request says otherwise. ctx: tokens of a context, for the notice that num_ctx does not change it. Throw ApiError 400.
Json ollama_chat_body(Json body, uint32_t ctx, const Rules&);
// chats: the prompt is a message, unless the request has raw or suffix; else it is a text to continue.
struct OllamaPrompt {
	bool chat;
	Json body;
};
OllamaPrompt ollama_prompt(Json body, bool chats, uint32_t ctx, const Rules&);
// Nothing is asked: clients load a model so.
bool ollama_loads(const Json& body);
// body: of /api/embed, or of /api/embeddings, with one text as "prompt".
EmbeddingsRequest ollama_embeddings(Json body, uint32_t dim, const Defaults&);

Response ollama_error(const ApiError&);                  // {"error": message}
std::string ollama_time(int64_t unix_seconds);           // RFC 3339
std::string ollama_quant(const std::string& model_name); // "Q4_K_M" of its end; "unknown" if it has none

// reply: null for a text to continue. chat: the answer is a message, else the text "response".
std::shared_ptr<Listener> ollama_answer(std::shared_ptr<Responder>, const std::string& model, bool chat, bool stream,
                                        ReplyHandle reply);
// The answer to a request that asks nothing.
Response ollama_loaded(const std::string& model, bool chat);

} // namespace kvrun::serve
