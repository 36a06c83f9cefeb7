// Vectors of texts, in the form of OpenAI's API, and scores of documents, in that of Jina's and of Hugging Face's.
#pragma once
#include "tools/serve/requests.h"

namespace kvrun::serve {

constexpr size_t kMaxInputs = 2048; // texts per request, as in OpenAI's API

struct EmbeddingsRequest {
	std::string model;
	std::vector<TextPrompt> inputs;
	bool base64 = false;
	uint32_t dimensions = 0; // channels that are kept
	// OpenAI's; llama.cpp's /embedding, an array of vectors of vectors; Ollama's /api/embed, and for one text its older
	// /api/embeddings
	enum class Form : uint8_t { OpenAi, Native, Ollama, OllamaOne } form = Form::OpenAi;
};
// dim: length of the model's vectors. Throws ApiError 400 that names the field.
EmbeddingsRequest embeddings_request(const Json& body, uint32_t dim, const Defaults&);

struct RerankRequest {
	std::string model, query;
	std::vector<std::string> documents;
	size_t top = SIZE_MAX;         // most results
	size_t most_tokens = SIZE_MAX; // of a document; the rest of a longer one is not read
	bool truncate = false;         // nor what the model has no room for
	bool with_documents = false;
	bool plain = false; // the form of Hugging Face's text-embeddings-inference: field "texts", results alone
};
RerankRequest rerank_request(const Json& body, const Defaults&);

// Compute and respond; end early if the client has disconnected. make_room: frees cache memory of idle sessions. Throw
// ApiError.
void embed(const Model&, const EmbeddingsRequest&, const std::vector<std::vector<uint32_t>>& texts,
           const std::function<void()>& make_room, Responder&);
void rerank(const Model&, const RerankRequest&, const std::function<void()>& make_room, Responder&);

// Little-endian f32 in base64 (RFC 4648).
std::string base64_of(std::span<const float>);

} // namespace kvrun::serve
