// Bodies of requests, checked once and turned into values.
#pragma once
#include "tools/serve/answer_form.h"
#include "tools/serve/generator.h"
#include <optional>
#include <set>
#include <span>

namespace kvrun::serve {

constexpr size_t kMaxDepth = 64;          // of nested arrays and objects
constexpr size_t kMaxValues = 2 << 20;    // of a body's JSON, arrays and objects among them
constexpr size_t kMaxKeys = 64 << 10;     // of all of its objects
constexpr size_t kMaxStops = 16;          // stop strings of a request
constexpr size_t kMaxStop = 1024;         // bytes of one
constexpr uint32_t kMaxChoices = 128;     // of a request, as in OpenAI's API
constexpr size_t kMaxTokenText = 1 << 20; // bytes of text that /tokenize takes, and tokens that /detokenize does

using Stop = std::function<bool()>; // whether nobody waits for the answer any more; none: somebody does

// In time that grows with the body's length. Throws ApiError 400, of which the message says what is wrong.
Json parse_body(const std::string& body, const Stop& = {});

Json json_or_null(const std::string&); // null: it is no JSON

// Reads one object's fields; those that are null count as absent. Throws ApiError 400 that names the field.
class Fields {
 public:
	// where: what stands before the names in messages, like "stream_options."
	explicit Fields(const Json& object, std::string where = {}) : object_(object), where_(std::move(where)) {}
	const Json* find(const char* name) const; // null: absent
	std::optional<double> number(const char* name, double lowest, double highest) const;
	std::optional<int64_t> integer(const char* name, int64_t lowest, int64_t highest) const;
	std::optional<std::string> text(const char* name) const;
	bool flag(const char* name, bool fallback) const;
	// Refuses fields that nobody has asked for and that are not among the harmless ones: what a client asks for is done
	// or refused, never ignored.
	void refuse_unknown(std::span<const char* const> harmless) const;

 private:
	[[noreturn]] void refuse(const char* name, const std::string& expected) const;
	const Json& object_;
	const std::string where_;
	mutable std::set<std::string_view> asked_; // names
};

// Fields of a request that do not change its answer: who asks, what is kept, how soon it comes. All others are read or
// refused.
std::span<const char* const> harmless_fields();

struct GenerationRequest {
	Sampling sampling;
	std::string kv;      // policy
	std::string model;   // as the request says; empty: it does not
	std::string session; // conversation it belongs to; empty: none
	AnswerForm form;
	uint32_t n = 1; // choices for each prompt; that of number i has the seed + i
	bool stream = false, include_usage = false;
	double ping_s = 10; // between signs of life in a stream while its prompt is read
	bool reuse = true;  // the prompt's beginning may come from an earlier session
};
struct ChatRequest : GenerationRequest {
	ChatPrompt prompt;
};
struct TextPrompt {
	std::string text; // or
	std::optional<std::vector<uint32_t>> tokens;
};
struct CompletionRequest : GenerationRequest {
	std::vector<TextPrompt> prompts;
};

// default_kv: policy of requests that name none.
ChatRequest chat_request(const Json& body, const std::string& default_kv);
CompletionRequest completion_request(const Json& body, const std::string& default_kv);
std::vector<uint32_t> token_list(const Json&, const char* name); // throws ApiError
// A text, an array of tokens, or an array of at most `most` of these. Throws ApiError 400 that names the field.
std::vector<TextPrompt> text_prompts(const Fields&, const char* name, size_t most);

} // namespace kvrun::serve
