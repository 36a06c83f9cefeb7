// Parses and validates request bodies.
#pragma once
#include "tools/serve/answer_form.h"
#include "tools/serve/fields.h"
#include "tools/serve/generator.h"
#include <variant>

namespace kvrun::serve {

constexpr size_t kMaxStops = 64;          // stop strings of a request
constexpr size_t kMaxStop = 1024;         // bytes of one
constexpr uint32_t kMaxChoices = 128;     // choices of a request, as in OpenAI's API
constexpr size_t kMaxTokenText = 1 << 20; // bytes to tokenize, tokens to detokenize

// What holds where a request says nothing else.
struct Defaults : Rules {
	Defaults(std::string kv = "fp16") : kv(std::move(kv)) {}
	Defaults(const char* kv) : kv(kv) {}
	std::string kv; // policy
	Sampling sampling;
	std::optional<uint64_t> seed;
	Json template_variables = Json::object();
	bool raw_reasoning = false; // of chats
	size_t n_adapters = 0;      // of the model, numbered from 0
};

// What the answers of llama.cpp's own routes hold beside the text.
struct NativeForm {
	bool tokens = false;             // the answer's tokens, too
	std::vector<std::string> fields; // these alone, as "timings/predicted_n"; empty: all
};

struct GenerationRequest {
	Sampling sampling;
	std::string kv;      // policy
	std::string model;   // as given in the request; empty if absent
	std::string session; // name of its conversation; empty if none
	AnswerForm form;
	uint32_t n = 1; // choices for each prompt; choice i uses seed + i
	bool stream = false, include_usage = false;
	bool progress = false, live_timings = false; // a stream says how far the prompt is read, and its speed so far
	double ping_s = 10; // seconds between progress comments in a stream while its prompt is read
	bool reuse = true;  // the beginning of the prompt may be reused from an earlier session
	bool mute = false;  // no tokens are wanted: the prompt is read, and one token that is not shown is generated
	std::optional<Scales> adapters;                       // nullopt: those of the server
	std::vector<std::pair<std::string, float>> text_bias; // logit_bias of the tokens of a text
	NativeForm native;
};
struct ChatRequest : GenerationRequest {
	ChatPrompt prompt;
	bool old_functions = false; // calls are function_call, and only the first one is passed on
	bool raw_reasoning = false; // the answer's text is all that the model writes, reasoning and its markers too
};
using PromptPiece = std::variant<std::string, std::vector<uint32_t>>;
using TextPrompt = std::vector<PromptPiece>; // in order; not empty
struct CompletionRequest : GenerationRequest {
	std::vector<TextPrompt> prompts;
	std::string suffix; // text behind the answer, with texts as prompts; empty: the answer is the end
	bool echo = false;  // the answer's text begins with the prompt
};

GenerationRequest common_fields(const Fields&, const Defaults&); // of all of these requests
// The limit of an answer's tokens, the first of these fields that is given; else `otherwise`. 0 mutes the answer.
void read_max_tokens(const Fields&, std::initializer_list<const char*> names, uint32_t otherwise, GenerationRequest&);
// [{"id", "scale"}]; adapters that are left out have the scale 0. Throws ApiError 400.
Scales adapter_scales(const Json&, const Defaults&);
NativeForm native_form(const Fields&);
Json sampling_json(const Sampling&); // by the fields of requests
ChatRequest chat_request(const Json& body, const Defaults&);
CompletionRequest completion_request(const Json& body, const Defaults&);
CompletionRequest native_request(const Json& body, const Defaults&); // of llama.cpp's /completion
std::vector<uint32_t> token_list(const Json&, const char* name);     // throws ApiError
// Reads a string, an array of tokens, an array of tokens and strings, or an array of at most `most` of these. Throws
// ApiError 400 that names the field.
std::vector<TextPrompt> text_prompts(const Fields&, const char* name, size_t most);

} // namespace kvrun::serve
