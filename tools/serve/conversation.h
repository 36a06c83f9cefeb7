// What the newer APIs share: a conversation in the form of OpenAI's chats, built from theirs.
#pragma once
#include "tools/serve/error.h"
#include <span>

namespace kvrun::serve {

// Messages in their order. What one assistant says, thinks and calls in a row is one message.
class Conversation {
 public:
	void say(const char* role, std::string text) {
		messages_.push_back({{"role", role}, {"content", std::move(text)}});
	}
	void result(std::string call, std::string text); // of a call of a tool
	// By the assistant.
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

// The text of a content: a text, or an array of parts whose types are among these. Throws ApiError 400 that names
// `where`, and `param` as the field.
std::string text_of(const Json& content, const std::string& where, const char* param,
                    std::span<const char* const> types);
// A field of an object that must be a text.
const std::string& text_in(const Json& object, const char* name, const std::string& where, const char* param);
// A field, taken out of the object; null: it has none.
Json take_field(Json& object, const char* name);
// Refuses a body that has one of these fields, which the API does not have and the chats' does.
void refuse_fields(const Json& body, std::span<const char* const> names);

struct Renamed {
	const char *from, *to;
};
// The same error with the names of another API's fields.
ApiError renamed(const ApiError&, std::span<const Renamed>);

} // namespace kvrun::serve
