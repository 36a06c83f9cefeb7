// Bodies of requests, checked once and turned into values.
#include "tools/serve/requests.h"
#include "engine/core/json_reader.h"
#include <cmath>
#include <random>

namespace kvrun::serve {
namespace {

constexpr size_t kMaxPolicy = 256;         // bytes of a policy's name and options
constexpr uint32_t kCompletionTokens = 16; // of a completion that gives no number, as in OpenAI's API

// Fields of OpenAI's API and of other servers that would change the answer and are not provided for, with the value
// that asks for nothing.
constexpr std::pair<const char*, const char*> kUnsupported[] = {
    {"audio", "null"},
    {"dry_multiplier", "0"},
    {"dynatemp_range", "0"},
    {"function_call", "\"auto\""},
    {"grammar", "\"\""},
    {"guided_grammar", "\"\""},
    {"guided_json", "null"},
    {"guided_regex", "\"\""},
    {"json_schema", "{}"},
    {"logit_bias", "{}"},
    {"min_tokens", "0"},
    {"mirostat", "0"},
    {"modalities", "[\"text\"]"},
    {"n_predict", "-1"},
    {"parallel_tool_calls", "true"},
    {"reasoning_effort", "null"},
    {"repetition_penalty", "1"},
    {"typical_p", "1"},
    {"use_beam_search", "false"},
    {"verbosity", "\"medium\""},
    {"web_search_options", "null"},
    {"xtc_probability", "0"},
};

std::string shown(const Json& value) {
	std::string text = dump(value);
	if (text.size() > 40) text = text.substr(0, 40) + "...";
	return text;
}

// A field that would change the answer and is not provided for. `plain`: the value that asks for nothing.
void unsupported(const Fields& f, const char* name, const Json& plain) {
	const Json* v = f.find(name);
	if (v && *v != plain)
		throw ApiError(400, std::string(name) + " is " + shown(*v) + ", which is not supported; leave it out", name,
		               "unsupported_parameter");
}

void read_stops(const Fields& f, Sampling& s) {
	const Json* stop = f.find("stop");
	if (!stop) return;
	const Json list = stop->is_array() ? *stop : Json::array({*stop});
	if (list.size() > kMaxStops)
		throw ApiError(400, "stop has more than " + std::to_string(kMaxStops) + " texts", "stop");
	for (const Json& text : list) {
		const std::string* t = text.get_ptr<const std::string*>();
		if (!t || t->empty() || t->size() > kMaxStop || t->find('\0') != std::string::npos)
			throw ApiError(400,
			               "stop is " + shown(text) + ", expected texts of 1 to " + std::to_string(kMaxStop) +
			                   " bytes, without a zero byte",
			               "stop");
		s.stops.push_back(*t);
	}
}

GenerationRequest common(const Fields& f, const std::string& default_kv) {
	GenerationRequest r;
	Sampling& s = r.sampling;
	r.model = f.text("model").value_or("");
	r.kv = f.text("kv").value_or(default_kv);
	if (r.kv.empty() || r.kv.size() > kMaxPolicy || r.kv.find('\0') != std::string::npos)
		throw ApiError(400, "kv is not the name of a policy, like \"kivi2\"", "kv");
	r.session = f.text("session").value_or("");
	s.temperature = f.number("temperature", 0, 100).value_or(s.temperature);
	s.top_p = f.number("top_p", 0, 1).value_or(s.top_p);
	s.min_p = f.number("min_p", 0, 1).value_or(s.min_p);
	s.top_k = uint32_t(f.integer("top_k", 0, UINT32_MAX).value_or(s.top_k));
	s.repeat_penalty = f.number("repeat_penalty", 0.01, 100).value_or(s.repeat_penalty);
	s.repeat_last_n = uint32_t(f.integer("repeat_last_n", 0, 65536).value_or(s.repeat_last_n));
	s.ignore_eos = f.flag("ignore_eos", false);
	const std::optional<int64_t> seed = f.integer("seed", INT64_MIN, INT64_MAX);
	s.seed = seed ? uint64_t(*seed) : std::random_device()();
	read_stops(f, s);
	r.stream = f.flag("stream", false);
	r.reuse = f.flag("cache_prompt", true);
	if (const Json* o = f.find("stream_options")) {
		if (!o->is_object()) throw ApiError(400, "stream_options is not an object", "stream_options");
		if (!r.stream) throw ApiError(400, "stream_options is for requests with stream: true", "stream_options");
		r.include_usage = Fields(*o).flag("include_usage", false);
	}
	r.n = uint32_t(f.integer("n", 1, kMaxChoices).value_or(1));
	if (r.n > 1 && !r.session.empty())
		throw ApiError(400, "n is " + std::to_string(r.n) + ", but a conversation with a name has one answer", "n");
	for (const char* name : {"frequency_penalty", "presence_penalty"})
		if (f.number(name, -2, 2).value_or(0) != 0)
			throw ApiError(400, std::string(name) + " is not supported; repeat_penalty is", name,
			               "unsupported_parameter");
	for (const auto& [name, plain] : kUnsupported) unsupported(f, name, Json::parse(plain));
	return r;
}

// The text of a message's content: a text, or an array of parts that are texts.
void check_content(const Json& content, const std::string& where) {
	if (content.is_string() || content.is_null()) return;
	if (!content.is_array()) throw ApiError(400, where + " is not a text or an array of parts", "messages");
	for (const Json& part : content) {
		const bool text = part.is_object() && part.value("type", Json()) == Json("text") && part.contains("text") &&
		                  part["text"].is_string();
		if (!text)
			throw ApiError(400, where + " has a part that is not {\"type\": \"text\", \"text\": ...}", "messages");
	}
}

std::string read_messages(const Fields& f) {
	const Json* given = f.find("messages");
	if (!given || !given->is_array() || given->empty())
		throw ApiError(400, "messages is not an array of at least one message", "messages");
	Json messages = *given;
	for (size_t i = 0; i < messages.size(); ++i) {
		const std::string where = "messages[" + std::to_string(i) + "]";
		Json& m = messages[i];
		if (!m.is_object() || !m.contains("role") || !m["role"].is_string())
			throw ApiError(400, where + " is not an object with a role", "messages");
		const std::string role = m["role"].get<std::string>();
		if (role == "developer") m["role"] = "system";
		if (role != "system" && role != "developer" && role != "user" && role != "assistant" && role != "tool")
			throw ApiError(400, where + ".role is " + shown(m["role"]) + ", expected system, user, assistant or tool",
			               "messages");
		if (m.contains("content")) check_content(m["content"], where + ".content");
	}
	return dump(messages);
}

bool wants_json(const Fields& f) {
	const Json* format = f.find("response_format");
	const auto is = [&](const char* type) {
		return format->is_object() && format->size() == 1 && format->contains("type") && (*format)["type"] == type;
	};
	if (!format || is("text")) return false;
	if (is("json_object")) return true;
	throw ApiError(400,
	               "response_format is " + shown(*format) +
	                   ", which is not supported; {\"type\": \"json_object\"} and {\"type\": \"text\"} are",
	               "response_format", "unsupported_parameter");
}

std::string read_tools(const Fields& f) {
	const Json* tools = f.find("tools");
	const Json* choice = f.find("tool_choice");
	if (choice && *choice != Json("none") && *choice != Json("auto"))
		throw ApiError(400, "tool_choice is " + shown(*choice) + ", expected none or auto", "tool_choice",
		               "unsupported_parameter");
	if (!tools || (tools->is_array() && tools->empty()) || (choice && *choice == Json("none"))) return {};
	if (!tools->is_array()) throw ApiError(400, "tools is not an array", "tools");
	for (const Json& t : *tools) {
		const bool named = t.is_object() && t.contains("function") && t["function"].is_object() &&
		                   t["function"].contains("name") && t["function"]["name"].is_string();
		if (!named) throw ApiError(400, "tools has an entry that is not a function with a name", "tools");
	}
	return dump(*tools);
}

} // namespace

Json parse_body(const std::string& body, const Stop& stop) {
	Json j;
	std::string why;
	if (!read_json(body, {kMaxDepth, kMaxValues, kMaxKeys, stop}, j, why)) throw ApiError(400, "the body " + why);
	if (!j.is_object()) throw ApiError(400, "the body is not a JSON object");
	return j;
}

Json json_or_null(const std::string& text) {
	Json j;
	std::string why;
	return read_json(text, {}, j, why) ? j : Json();
}

const Json* Fields::find(const char* name) const {
	const auto at = object_.find(name);
	return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void Fields::refuse(const char* name, const std::string& expected) const {
	throw ApiError(400, std::string(name) + " is " + shown(object_[name]) + ", expected " + expected, name);
}

std::optional<double> Fields::number(const char* name, double lowest, double highest) const {
	const Json* v = find(name);
	if (!v) return {};
	const double x = v->is_number() ? v->get<double>() : NAN;
	if (!(x >= lowest && x <= highest)) refuse(name, "a number from " + dump(lowest) + " to " + dump(highest));
	return x;
}

std::optional<int64_t> Fields::integer(const char* name, int64_t lowest, int64_t highest) const {
	const Json* v = find(name);
	if (!v) return {};
	const bool fits = v->is_number_integer() && !(v->is_number_unsigned() && v->get<uint64_t>() > uint64_t(INT64_MAX));
	const int64_t x = fits ? v->get<int64_t>() : 0;
	if (!fits || x < lowest || x > highest)
		refuse(name, "an integer from " + std::to_string(lowest) + " to " + std::to_string(highest));
	return x;
}

std::optional<std::string> Fields::text(const char* name) const {
	const Json* v = find(name);
	if (!v) return {};
	if (!v->is_string()) refuse(name, "a text");
	return v->get<std::string>();
}

bool Fields::flag(const char* name, bool fallback) const {
	const Json* v = find(name);
	if (!v) return fallback;
	if (!v->is_boolean()) refuse(name, "true or false");
	return v->get<bool>();
}

std::vector<uint32_t> token_list(const Json& list, const char* name) {
	std::vector<uint32_t> out;
	for (const Json& t : list) {
		if (!t.is_number_unsigned() || t.get<uint64_t>() >= UINT32_MAX)
			throw ApiError(400, std::string(name) + " has an element that is not a token: " + shown(t), name);
		out.push_back(t.get<uint32_t>());
	}
	return out;
}

ChatRequest chat_request(const std::string& body, const std::string& default_kv, const Stop& stop) {
	const Json j = parse_body(body, stop);
	const Fields f(j);
	ChatRequest r{common(f, default_kv), {}, false};
	r.prompt.messages = read_messages(f);
	r.prompt.tools = read_tools(f);
	if (const Json* v = f.find("chat_template_kwargs")) {
		if (!v->is_object()) throw ApiError(400, "chat_template_kwargs is not an object", "chat_template_kwargs");
		r.prompt.variables = dump(*v);
	}
	const std::optional<int64_t> newer = f.integer("max_completion_tokens", 1, UINT32_MAX - 1);
	const std::optional<int64_t> older = f.integer("max_tokens", 1, UINT32_MAX - 1);
	r.sampling.max_tokens = uint32_t(newer.value_or(older.value_or(UINT32_MAX)));
	const std::optional<int64_t> top = f.integer("top_logprobs", 0, kMostLogprobs);
	if (f.flag("logprobs", false))
		r.sampling.logprobs = uint32_t(top.value_or(0));
	else if (top)
		throw ApiError(400, "top_logprobs is for requests with logprobs: true", "top_logprobs");
	r.json = wants_json(f);
	unsupported(f, "functions", Json::array());
	return r;
}

CompletionRequest completion_request(const std::string& body, const std::string& default_kv, const Stop& stop) {
	const Json j = parse_body(body, stop);
	const Fields f(j);
	CompletionRequest r{common(f, default_kv), {}, {}};
	const Json* prompt = f.find("prompt");
	if (prompt && prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number()) prompt = &prompt->front();
	if (prompt && prompt->is_string())
		r.text = prompt->get<std::string>();
	else if (prompt && prompt->is_array() && !prompt->empty() && prompt->front().is_number())
		r.tokens = token_list(*prompt, "prompt");
	else
		throw ApiError(400, "prompt is not a text or an array of tokens", "prompt");
	r.sampling.max_tokens = uint32_t(f.integer("max_tokens", 1, UINT32_MAX - 1).value_or(kCompletionTokens));
	if (const std::optional<int64_t> top = f.integer("logprobs", 0, kMostLogprobs))
		r.sampling.logprobs = uint32_t(*top);
	unsupported(f, "echo", false);
	unsupported(f, "suffix", "");
	unsupported(f, "best_of", r.n); // as many are generated as are given
	return r;
}

} // namespace kvrun::serve
