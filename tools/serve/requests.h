// Parses and validates request bodies.
#pragma once
#include "tools/serve/answer_form.h"
#include "tools/serve/generator.h"
#include <optional>
#include <set>
#include <span>

namespace kvrun::serve {

constexpr size_t kMaxDepth = 64;          // nesting depth of arrays and objects
constexpr size_t kMaxValues = 2 << 20;    // values in a body's JSON, including arrays and objects
constexpr size_t kMaxKeys = 64 << 10;     // keys of all objects of a body
constexpr size_t kMaxStops = 16;          // stop strings of a request
constexpr size_t kMaxStop = 1024;         // bytes of one
constexpr uint32_t kMaxChoices = 128;     // choices of a request, as in OpenAI's API
constexpr size_t kMaxTokenText = 1 << 20; // bytes to tokenize, tokens to detokenize

using Stop = std::function<bool()>; // true if nobody waits for the answer any more; empty if somebody always does

// Takes time linear in the body's length. Throws ApiError 400 whose message says what is wrong.
Json parse_body(const std::string& body, const Stop& = {});

Json json_or_null(const std::string&); // null if the text is not valid JSON

// Reads the fields of one object; a null field counts as absent. Throws ApiError 400 that names the field.
class Fields {
 public:
	// where: prefix of field names in messages, for example "stream_options."
	explicit Fields(const Json& object, std::string where = {}) : object_(object), where_(std::move(where)) {}
	const Json* find(const char* name) const; // null if absent
	std::optional<double> number(const char* name, double lowest, double highest) const;
	std::optional<int64_t> integer(const char* name, int64_t lowest, int64_t highest) const;
	std::optional<std::string> text(const char* name) const;
	bool flag(const char* name, bool fallback) const;
	// Refuses fields that were not read and are not in `harmless`: what a client asks for is done
	// or refused, never ignored.
	void refuse_unknown(std::span<const char* const> harmless) const;

 private:
	[[noreturn]] void refuse(const char* name, const std::string& expected) const;
	const Json& object_;
	const std::string where_;
	mutable std::set<std::string_view> asked_; // names
};

// Fields that do not change the answer, such as who asks, what is kept, and priority. All other fields are read or
// refused.
std::span<const char* const> harmless_fields();

struct GenerationRequest {
	Sampling sampling;
	std::string kv;      // policy
	std::string model;   // as given in the request; empty if absent
	std::string session; // name of its conversation; empty if none
	AnswerForm form;
	uint32_t n = 1; // choices for each prompt; choice i uses seed + i
	bool stream = false, include_usage = false;
	double ping_s = 10; // seconds between progress comments in a stream while its prompt is read
	bool reuse = true;  // the beginning of the prompt may be reused from an earlier session
};
struct ChatRequest : GenerationRequest {
	ChatPrompt prompt;
};
struct TextPrompt {
	std::string text; // used if `tokens` is absent
	std::optional<std::vector<uint32_t>> tokens;
};
struct CompletionRequest : GenerationRequest {
	std::vector<TextPrompt> prompts;
	std::string suffix; // text behind the answer, with texts as prompts; empty: the answer is the end
};

// default_kv: policy of requests that do not name one.
GenerationRequest common_fields(const Fields&, const std::string& default_kv); // of all of these requests
ChatRequest chat_request(const Json& body, const std::string& default_kv);
CompletionRequest completion_request(const Json& body, const std::string& default_kv);
std::vector<uint32_t> token_list(const Json&, const char* name); // throws ApiError
// Reads a string, an array of tokens, or an array of at most `most` of these. Throws ApiError 400 that names the field.
std::vector<TextPrompt> text_prompts(const Fields&, const char* name, size_t most);

} // namespace kvrun::serve
