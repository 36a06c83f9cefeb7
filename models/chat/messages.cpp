// Messages of a conversation as JSON.
#include "models/chat/messages.h"
#include "engine/core/json_reader.h"
#include <utility>

namespace kvrun {
namespace {

std::string* text_of(Json& part) { // null: it has none
	return part.is_object() && part.contains("text") ? part["text"].get_ptr<std::string*>() : nullptr;
}

void make_parts(Json& content) {
	if (content.is_string()) content = text_part(content.get<std::string>());
}

} // namespace

Json message(const char* role, Json content) {
	Json m = Json::object();
	m["role"] = role;
	m["content"] = std::move(content);
	return m;
}

Json text_part(const std::string& text) { return Json::array({Json::object({{"type", "text"}, {"text", text}})}); }

bool has_role(const Json& message, const char* role) {
	return message.is_object() && message.value("role", Json()) == Json(role);
}

void append_content(Json& content, Json next) {
	if (content.is_string() && next.is_string()) {
		std::string& text = content.get_ref<std::string&>();
		const std::string& more = next.get_ref<const std::string&>();
		text.append(text.empty() || more.empty() ? "" : "\n\n").append(more);
		return;
	}
	make_parts(content), make_parts(next);
	if (std::string* last = content.empty() ? nullptr : text_of(content.back()); last && !last->empty())
		*last += "\n\n";
	for (Json& p : next) content.push_back(std::move(p));
}

void append_text(Json& content, const std::string& text) {
	if (content.is_array()) {
		if (std::string* last = content.empty() ? nullptr : text_of(content.back()))
			*last += text;
		else
			content.push_back(text_part(text)[0]);
	} else {
		content = (content.is_string() ? content.get<std::string>() : std::string()) + text;
	}
}

void parse_arguments(Json& arguments) {
	if (!arguments.is_string()) return;
	const std::string& text = arguments.get_ref<const std::string&>();
	Json parsed = Json::object(); // some clients send an empty text for a call without arguments
	std::string why;
	const bool empty = text.find_first_not_of(" \t\r\n") == text.npos;
	if (empty || (read_json(text, {}, parsed, why) && parsed.is_object())) arguments = std::move(parsed);
}

} // namespace kvrun
