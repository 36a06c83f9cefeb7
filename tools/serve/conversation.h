// Shared by the Responses and Messages APIs: builds a conversation in the form of OpenAI's chats from their input.
#pragma once
#include "tools/serve/fields.h"

namespace kvrun::serve {

// Messages in order. Consecutive text, reasoning and tool calls of the assistant form one message.
class Conversation {
 public:
	void say(const char* role, Json content) { // text, or parts
		messages_.push_back({{"role", role}, {"content", std::move(content)}});
	}
	void result(std::string call, std::string text); // of a tool call
	// These append to the assistant's message.
	void answer(const std::string& text);
	void think(const std::string& text);
	void call(std::string id, std::string name, std::string arguments);
	bool ends_with_answer() const { return !messages_.empty() && messages_.back()["role"] == "assistant"; }
	bool empty() const { return messages_.empty(); }
	Json take() { return std::move(messages_); }

 private:
	Json& assistant();
	Json messages_ = Json::array();
};

// The text of a "content": a string, or an array of parts whose types are among `types`. Throws ApiError 400 that names
// `where`, and `param` as the field.
std::string text_of(const Json& content, const std::string& where, const char* param,
                    std::span<const char* const> types);
// The same with images: image(part) gives one in the form of chats, or null for a part that is none. Then the result is
// an array of parts, else the text.
Json content_of(const Json& content, const std::string& where, const char* param, std::span<const char* const> types,
                Json (*image)(const Json& part, const std::string& where));
// A field of an object that must be a string. Throws ApiError 400.
const std::string& text_in(const Json& object, const char* name, const std::string& where, const char* param);
// Removes a field from the object and returns it; null if absent.
Json take_field(Json& object, const char* name);
// Removes fields that exist in OpenAI's chats but not in this API, with a notice. Strict rules: throws ApiError 400.
void drop_fields(Json& body, std::span<const char* const> names, const Rules&);

// A tool that is no function, which other servers run: null, with a notice.
Json no_function(const Json& type, const Rules&);
// Tools in the form of OpenAI's chats. function: makes the "function" of one entry; null: the entry is left out. Throws
// ApiError 400.
template <class F> Json chat_tools(const Json& tools, F function) {
	if (!tools.is_array()) throw ApiError(400, "tools is not an array", "tools");
	Json out = Json::array();
	for (const Json& t : tools) {
		if (!t.is_object()) throw ApiError(400, "tools has an entry that is not an object", "tools");
		if (Json made = function(t); !made.is_null())
			out.push_back({{"type", "function"}, {"function", std::move(made)}});
	}
	return out;
}

struct Renamed {
	const char *from, *to;
};
// The same error with field names replaced by those of another API.
ApiError renamed(const ApiError&, std::span<const Renamed>);

} // namespace kvrun::serve
