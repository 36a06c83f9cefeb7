// Fill in the middle: the text between a prefix and a suffix, as editors ask for it, in the form of llama.cpp's /infill
// and as `suffix` of OpenAI's completions. For models that were trained for it, such as Qwen2.5-Coder.
#pragma once
#include "tools/serve/model.h"
#include "tools/serve/requests.h"

namespace kvrun::serve {

struct InfillFile { // of the project that the text belongs to
	std::string name, text;
};
struct InfillText {
	std::string prefix, suffix;
	std::vector<InfillFile> files; // in the order of the prompt
};
struct InfillRequest : GenerationRequest {
	InfillText text;
};
// The body of /infill. Throws ApiError 400 that names the field.
InfillRequest infill_request(Json body, const Defaults&);

struct InfillMarkers { // tokens in front of the parts of a prompt, by the model's metadata or by their texts
	std::optional<uint32_t> prefix, suffix, middle, repository, file;
};
InfillMarkers infill_markers(const Model&);

// The tokens of [repository name, files,] prefix, suffix, each behind its marker, and the marker of the middle. If they
// are more than `most`, the oldest files go first, then the beginning of the prefix and the end of the suffix, of which
// a quarter of `most` stays. Throws ApiError 400 if the model has no marker of prefix, suffix or middle.
std::vector<uint32_t> infill_tokens(const Model&, const InfillMarkers&, const InfillText&, size_t most);

} // namespace kvrun::serve
