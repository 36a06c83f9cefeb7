// Embeddings: a vector for each text, in the form of OpenAI's API.
#pragma once
#include "tools/serve/requests.h"

namespace kvrun::serve {

constexpr size_t kMaxInputs = 2048; // texts per request, as in OpenAI's API

struct EmbeddingsRequest {
	std::string model;
	std::vector<TextPrompt> inputs;
	bool base64 = false;
};
// dim: length of the model's vectors. Throws ApiError 400 that names the field.
EmbeddingsRequest embeddings_request(const Json& body, uint32_t dim);

// Computes the vectors one after the other and responds; ends early if the client has disconnected. make_room: frees
// cache memory of idle sessions. Throws ApiError.
void embed(const Model&, const std::vector<std::vector<uint32_t>>& texts, bool base64,
           const std::function<void()>& make_room, Responder&);

// Little-endian f32 in base64 (RFC 4648).
std::string base64_of(std::span<const float>);

} // namespace kvrun::serve
