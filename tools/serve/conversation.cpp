// Shared by the Responses and Messages APIs: builds a conversation in the form of OpenAI's chats from their input.
#include "tools/serve/conversation.h"
#include <algorithm>

namespace kvrun::serve {

void Conversation::result(std::string call, std::string text) {
	messages_.push_back({{"role", "tool"}, {"tool_call_id", std::move(call)}, {"content", std::move(text)}});
}

Json& Conversation::assistant() {
	if (!ends_with_answer()) messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
	return messages_.back();
}

// Appends to a text field in place, so that an answer of many parts takes linear time.
static void append(Json& field, const std::string& text) {
	if (!field.is_string())
		field = text;
	else
		field.get_ref<std::string&>() += "\n" + text;
}

void Conversation::answer(const std::string& text) { append(assistant()["content"], text); }
void Conversation::think(const std::string& text) { append(assistant()["reasoning_content"], text); }

void Conversation::call(std::string id, std::string name, std::string arguments) {
	Json& m = assistant();
	if (!m.contains("tool_calls")) m["tool_calls"] = Json::array();
	m["tool_calls"].push_back({{"id", std::move(id)},
	                           {"type", "function"},
	                           {"function", {{"name", std::move(name)}, {"arguments", std::move(arguments)}}}});
}

std::string text_of(const Json& content, const std::string& where, const char* param,
                    std::span<const char* const> types) {
	if (const std::string* text = content.get_ptr<const std::string*>()) return *text;
	if (!content.is_array()) throw ApiError(400, where + " is not a text or an array of parts", param);
	std::string out;
	for (const Json& part : content) {
		if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
			throw ApiError(400, where + " has a part that is not an object with a type", param);
		const std::string& type = part["type"].get_ref<const std::string&>();
		if (std::ranges::none_of(types, [&](const char* t) { return type == t; }))
			throw ApiError(400, where + " has a part of type '" + type.substr(0, 40) + "'; this server takes text",
			               param);
		if (!out.empty()) out += "\n";
		out += text_in(part, type == "refusal" ? "refusal" : "text", where, param);
	}
	return out;
}

Json content_of(const Json& content, const std::string& where, const char* param, std::span<const char* const> types,
                Json (*image)(const Json& part, const std::string& where)) {
	Json parts = Json::array(), texts = Json::array();
	bool any = false;
	const auto end_text = [&] {
		if (!texts.empty()) parts.push_back({{"type", "text"}, {"text", text_of(texts, where, param, types)}});
		texts = Json::array();
	};
	if (content.is_array())
		for (const Json& part : content) {
			Json one = part.is_object() ? image(part, where) : Json();
			if (one.is_null()) {
				texts.push_back(part);
				continue;
			}
			end_text();
			parts.push_back(std::move(one));
			any = true;
		}
	if (!any) return text_of(content, where, param, types);
	end_text();
	return parts;
}

const std::string& text_in(const Json& object, const char* name, const std::string& where, const char* param) {
	const auto at = object.find(name);
	if (at == object.end() || !at->is_string())
		throw ApiError(400, where + " has no " + name + " that is a text", param);
	return at->get_ref<const std::string&>();
}

Json take_field(Json& object, const char* name) {
	const auto at = object.find(name);
	if (at == object.end()) return {};
	Json value = std::move(*at);
	object.erase(at);
	return value;
}

Json no_function(const Json& type, const Rules& rules) {
	rules.ignored("tools of type " + shown(type) + " are left out: this server has functions alone");
	return {};
}

void drop_fields(Json& body, std::span<const char* const> names, const Rules& rules) {
	for (const char* name : names) {
		if (take_field(body, name).is_null()) continue;
		if (rules.strict)
			throw ApiError(400, std::string(name) + " is a field of another API; leave it out", name,
			               "unknown_parameter");
		rules.ignored(std::string("request field '") + name + "' is one of another API and ignored");
	}
}

ApiError renamed(const ApiError& e, std::span<const Renamed> names) {
	std::string message = e.what(), param = e.param;
	for (const auto& [from, to] : names) {
		if (param != from) continue;
		param = to;
		if (message.starts_with(from)) message.replace(0, std::string_view(from).size(), to);
		break;
	}
	return {e.status, message, param, e.code};
}

} // namespace kvrun::serve
