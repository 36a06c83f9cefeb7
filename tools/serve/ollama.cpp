// Ollama's API: its requests in the form of OpenAI's chats and completions.
#include "tools/serve/ollama.h"
#include "tools/serve/conversation.h"
#include "tools/serve/media.h"
#include <algorithm>
#include <ctime>

namespace kvrun::serve {
namespace {

// Options of Ollama that say how a model is loaded and run; the server's own options decide that here.
constexpr const char* kLoading[] = {"num_keep", "num_batch",  "num_gpu",  "main_gpu",        "num_thread",
                                    "use_mmap", "use_mlock",  "low_vram", "vocab_only",      "numa",
                                    "f16_kv",   "logits_all", "tfs_z",    "penalize_newline"};

void read_options(const Json& options, Json& body, uint32_t ctx, const Rules& rules) {
	if (options.is_null()) return;
	if (!options.is_object()) throw ApiError(400, "options is not an object", "options");
	for (const auto& [name, value] : options.items()) {
		if (std::ranges::count(kLoading, name) || body.contains(name)) continue;
		if (name == "num_ctx") {
			if (value.is_number() && value.get<double>() > ctx)
				rules.ignored("num_ctx is ignored: the context has " + std::to_string(ctx) + " tokens, -c changes it");
		} else if (name == "num_predict") { // -1: no limit, -2: until the context is full
			if (!value.is_number() || value.get<double>() >= 0) body["max_tokens"] = value;
		} else {
			body[name] = value;
		}
	}
}

void read_format(const Json& format, Json& body) {
	if (format.is_null() || format == Json("")) return;
	if (format == Json("json"))
		body["response_format"] = {{"type", "json_object"}};
	else if (format.is_object())
		body["json_schema"] = format;
	else
		throw ApiError(400, "format is " + shown(format) + ", expected \"json\" or a JSON schema", "format");
}

void read_think(const Json& think, Json& body) {
	if (think.is_boolean())
		body["chat_template_kwargs"] = {{"enable_thinking", think}};
	else if (think.is_string())
		body["reasoning_effort"] = think;
	else if (!think.is_null())
		throw ApiError(400, "think is " + shown(think) + ", expected true, false, low, medium or high", "think");
}

// What both requests have.
void read_common(Json& body, uint32_t ctx, const Rules& rules) {
	for (const char* name : {"keep_alive", "truncate", "shift"}) take_field(body, name);
	for (const char* name : {"template", "context"})
		if (!take_field(body, name).is_null())
			rules.ignored(std::string(name) + " is ignored: the model's own is used");
	read_options(take_field(body, "options"), body, ctx, rules);
	read_format(take_field(body, "format"), body);
	read_think(take_field(body, "think"), body);
	if (!body.contains("stream")) body["stream"] = true;
}

// The text, or parts if there are images, which are base64 without a type.
Json content_with(Json text, const Json& images, const std::string& where) {
	if (images.is_null() || (images.is_array() && images.empty())) return text;
	if (!images.is_array()) throw ApiError(400, where + ".images is not an array", "messages");
	Json parts = Json::array();
	for (const Json& image : images) {
		if (!image.is_string()) throw ApiError(400, where + ".images has an element that is no text", "messages");
		parts.push_back(image_part("data:image;base64," + image.get<std::string>()));
	}
	if (text.is_string() && text != Json("")) parts.push_back({{"type", "text"}, {"text", std::move(text)}});
	return parts;
}

// Ollama's calls have arguments as objects, and often no ids: results follow in the order of the calls.
class Calls {
 public:
	Json of_message(const Json& calls, const std::string& where) {
		if (!calls.is_array()) throw ApiError(400, where + ".tool_calls is not an array", "messages");
		Json out = Json::array();
		open_ = Json::array();
		for (const Json& given : calls) {
			const Json function = given.is_object() ? given.value("function", Json()) : Json();
			if (!function.is_object()) throw ApiError(400, where + ".tool_calls has no function", "messages");
			const Json id = given.value("id", Json("call_" + std::to_string(n_++)));
			const Json arguments = function.value("arguments", Json::object());
			open_.push_back(id);
			out.push_back({{"id", id},
			               {"type", "function"},
			               {"function",
			                {{"name", text_in(function, "name", where + ".tool_calls", "messages")},
			                 {"arguments", arguments.is_string() ? arguments : Json(dump(arguments))}}}});
		}
		return out;
	}
	Json next_result() {
		if (open_.empty()) return "call_" + std::to_string(n_++);
		Json id = open_[0];
		open_.erase(0);
		return id;
	}

 private:
	size_t n_ = 0;
	Json open_ = Json::array(); // ids of calls without a result
};

Json chat_message(const Json& m, const std::string& where, Calls& calls) {
	if (!m.is_object()) throw ApiError(400, where + " is not an object", "messages");
	Json out{{"role", text_in(m, "role", where, "messages")}};
	out["content"] = content_with(m.value("content", Json("")), m.value("images", Json()), where);
	if (const Json thought = m.value("thinking", Json()); thought.is_string() && thought != Json(""))
		out["reasoning_content"] = thought;
	if (const Json given = m.value("tool_calls", Json()); !given.is_null() && !given.empty())
		out["tool_calls"] = calls.of_message(given, where);
	if (out["role"] == "tool") out["tool_call_id"] = m.value("tool_call_id", calls.next_result());
	return out;
}

} // namespace

Json ollama_chat_body(Json body, uint32_t ctx, const Rules& rules) {
	read_common(body, ctx, rules);
	const Json given = take_field(body, "messages");
	if (!given.is_array()) throw ApiError(400, "messages is not an array", "messages");
	Json messages = Json::array();
	Calls calls;
	for (size_t i = 0; i < given.size(); ++i)
		messages.push_back(chat_message(given[i], "messages[" + std::to_string(i) + "]", calls));
	body["messages"] = std::move(messages);
	if (body.contains("tools") && body["tools"].empty()) body.erase("tools");
	return body;
}

OllamaPrompt ollama_prompt(Json body, bool chats, uint32_t ctx, const Rules& rules) {
	read_common(body, ctx, rules);
	const Json prompt = take_field(body, "prompt"), system = take_field(body, "system"),
	           images = take_field(body, "images"), raw = take_field(body, "raw"), suffix = take_field(body, "suffix");
	if (!prompt.is_string()) throw ApiError(400, "prompt is not a text", "prompt");
	const bool between = suffix.is_string() && suffix != Json("");
	const bool chat = chats && raw != Json(true) && !between;
	if (!chat) {
		for (const char* name : {"chat_template_kwargs", "reasoning_effort"}) take_field(body, name);
		body["prompt"] = prompt;
		if (between) body["suffix"] = suffix;
		return {false, std::move(body)};
	}
	Json messages = Json::array();
	if (system.is_string() && system != Json("")) messages.push_back({{"role", "system"}, {"content", system}});
	messages.push_back({{"role", "user"}, {"content", content_with(prompt, images, "the request")}});
	body["messages"] = std::move(messages);
	return {true, std::move(body)};
}

bool ollama_loads(const Json& body) {
	const auto nothing = [&](const char* name) {
		const Json given = body.is_object() ? body.value(name, Json()) : Json();
		return given.is_null() || given == Json("") || given == Json::array();
	};
	return nothing("messages") && nothing("prompt") && nothing("images") && nothing("suffix");
}

EmbeddingsRequest ollama_embeddings(Json body, uint32_t dim, const Defaults& d) {
	for (const char* name : {"keep_alive", "truncate", "options"}) take_field(body, name);
	const bool one = body.contains("prompt") && !body.contains("input");
	if (one) body["input"] = take_field(body, "prompt");
	EmbeddingsRequest r = embeddings_request(body, dim, d);
	r.form = one ? EmbeddingsRequest::Form::OllamaOne : EmbeddingsRequest::Form::Ollama;
	return r;
}

Response ollama_error(const ApiError& e) {
	Response r = error_response(e);
	r.body = dump({{"error", e.what()}});
	return r;
}

std::string ollama_time(int64_t unix_seconds) {
	const std::time_t t = unix_seconds;
	std::tm utc{};
#ifdef _WIN32
	gmtime_s(&utc, &t);
#else
	gmtime_r(&t, &utc);
#endif
	char text[32];
	return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc));
}

std::string ollama_quant(const std::string& model_name) {
	const size_t at = model_name.find_last_of("-.:") + 1; // 0: none of them
	std::string quant;
	for (const char c : model_name.substr(at)) quant += c >= 'a' && c <= 'z' ? char(c - 'a' + 'A') : c;
	for (const char* begin : {"Q", "IQ", "TQ", "F16", "F32", "BF16", "MXFP4", "NVFP4"})
		if (quant.starts_with(begin)) return quant;
	return "unknown";
}

} // namespace kvrun::serve
