// Functions as OpenAI's chats had them before tools.
#include "tools/serve/old_functions.h"
#include "tools/serve/conversation.h"

namespace kvrun::serve {
namespace {

Json choice_of(const Json& call) {
	if (call == Json("auto") || call == Json("none")) return call;
	if (!call.is_object() || !call.value("name", Json()).is_string())
		throw ApiError(400, "function_call is " + shown(call) + ", expected none, auto or an object with a name",
		               "function_call");
	return {{"type", "function"}, {"function", {{"name", call["name"]}}}};
}

// A result belongs to the last call.
void convert(Json& messages) {
	size_t calls = 0;
	const auto id = [&] { return "call_" + std::to_string(calls); };
	for (Json& m : messages) {
		if (!m.is_object()) continue; // refused later
		if (Json call = take_field(m, "function_call"); call.is_object()) {
			++calls;
			m["tool_calls"] = Json::array({{{"id", id()}, {"type", "function"}, {"function", std::move(call)}}});
		}
		if (m.value("role", Json()) == Json("function")) m["role"] = "tool", m["tool_call_id"] = id();
	}
}

bool has_functions(const Json& messages) {
	return messages.is_array() && std::any_of(messages.begin(), messages.end(), [](const Json& m) {
		       return m.is_object() && (m.contains("function_call") || m.value("role", Json()) == Json("function"));
	       });
}

} // namespace

std::optional<Json> with_tools(const Json& body) {
	const Fields f(body);
	const Json *functions = f.find("functions"), *call = f.find("function_call"), *messages = f.find("messages");
	const bool said = messages && has_functions(*messages);
	if (!functions && !call && !said) return {};
	Json out = body;
	out.erase("functions"), out.erase("function_call");
	if (said) convert(out["messages"]);
	if (functions) {
		if (f.find("tools") || f.find("tool_choice"))
			throw ApiError(400, "functions and tools are both given; give tools, with tool_choice", "functions");
		out["tools"] = chat_tools(*functions, [](const Json& function) { return function; });
	}
	if (!call) return out;
	Json choice = choice_of(*call);
	if (functions || call->is_object()) out["tool_choice"] = std::move(choice);
	return out;
}

ApiError of_functions(const ApiError& e) {
	constexpr Renamed kNames[] = {{"tools", "functions"}, {"tool_choice", "function_call"}};
	return renamed(e, kNames);
}

Json with_function_call(Json message) {
	const Json calls = take_field(message, "tool_calls");
	if (calls.is_array() && !calls.empty()) message["function_call"] = calls[0]["function"];
	return message;
}

} // namespace kvrun::serve
