// Bodies of requests, checked once and turned into values.
#pragma once
#include "tools/serve/generator.h"
#include <optional>

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
	explicit Fields(const Json& object) : object_(object) {}
	const Json* find(const char* name) const; // null: absent
	std::optional<double> number(const char* name, double lowest, double highest) const;
	std::optional<int64_t> integer(const char* name, int64_t lowest, int64_t highest) const;
	std::optional<std::string> text(const char* name) const;
	bool flag(const char* name, bool fallback) const;

 private:
	[[noreturn]] void refuse(const char* name, const std::string& expected) const;
	const Json& object_;
};

struct GenerationRequest {
	Sampling sampling;
	std::string kv;      // policy
	std::string model;   // as the request says; empty: it does not
	std::string session; // conversation it belongs to; empty: none
	uint32_t n = 1;      // choices; that of number i has the seed + i
	bool stream = false, include_usage = false;
	bool reuse = true; // the prompt's beginning may come from an earlier session
};
struct ChatRequest : GenerationRequest {
	ChatPrompt prompt;
	bool json = false; // the answer is to be a JSON object
};
struct CompletionRequest : GenerationRequest {
	std::string text; // or
	std::optional<std::vector<uint32_t>> tokens;
};

// default_kv: policy of requests that name none.
ChatRequest chat_request(const std::string& body, const std::string& default_kv, const Stop& = {});
CompletionRequest completion_request(const std::string& body, const std::string& default_kv, const Stop& = {});
std::vector<uint32_t> token_list(const Json&, const char* name); // throws ApiError

} // namespace kvrun::serve
