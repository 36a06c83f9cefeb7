// Calls, and tools, as text of messages: for templates that have no place for them.
#include "models/chat/write_tools.h"
#include "models/chat/call_grammar.h"
#include "models/chat/messages.h"
#include <fmt/format.h>

namespace kvrun {
namespace {

// Names of constants, and what stands between the parts of arrays and objects.
struct Notation {
	const char *true_word, *false_word, *null_word;
};
constexpr Notation kJson{"true", "false", "null"}, kPython{"True", "False", "None"};

// One line, with spaces as Python's json.dumps() writes them: models have read it in that form.
std::string written(const Json& value, const Notation& n) {
	std::string all;
	if (value.is_object()) {
		for (const auto& [key, each] : value.items())
			all += fmt::format("{}{}: {}", all.empty() ? "" : ", ", written(key, n), written(each, n));
		return '{' + all + '}';
	}
	if (value.is_array()) {
		for (const Json& each : value) all += (all.empty() ? "" : ", ") + written(each, n);
		return '[' + all + ']';
	}
	if (value.is_boolean()) return value.get<bool>() ? n.true_word : n.false_word;
	if (value.is_null()) return n.null_word;
	return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

struct Call {
	std::string name;
	Json arguments; // an object; a text that is none stays a text
};

Call read_call(const Json& given) {
	const Json& function = given.is_object() && given.contains("function") ? given["function"] : given;
	Call call;
	if (!function.is_object()) return call;
	if (const auto name = function.find("name"); name != function.end() && name->is_string()) call.name = *name;
	call.arguments = function.value("arguments", Json());
	parse_arguments(call.arguments);
	return call;
}

std::string call_object(const Call& c) {
	return written(Json::object({{"name", c.name}, {"arguments", c.arguments}}), kJson);
}

// name(key="value", n=1)
std::string python_call(const Call& c) {
	std::string all;
	if (c.arguments.is_object())
		for (const auto& [key, value] : c.arguments.items())
			all += fmt::format("{}{}={}", all.empty() ? "" : ", ", key, written(value, kPython));
	return fmt::format("{}({})", c.name, all);
}

std::string hermes_calls(const Json& calls) {
	std::string all;
	for (const Json& each : calls)
		all += fmt::format("{}<tool_call>\n{}\n</tool_call>", all.empty() ? "" : "\n", call_object(read_call(each)));
	return all;
}

// One list between the markers of the form.
std::string listed_calls(const Json& calls, const ChatFeatures& f) {
	std::string all;
	for (const Json& each : calls) {
		const Call call = read_call(each);
		all +=
		    (all.empty() ? "" : ", ") + (f.tool_format == ToolFormat::Pythonic ? python_call(call) : call_object(call));
	}
	const std::string end = f.tool_end.empty() ? "" : own_text(f.tool_end);
	return fmt::format("{}[{}]{}", own_text(call_marker(f)), all, end);
}

void write_calls(const ChatFeatures& f, Json& answer) {
	const Json calls = std::move(answer["tool_calls"]);
	answer.erase("tool_calls");
	Json& content = answer["content"];
	const bool behind_text = (content.is_string() || content.is_array()) && !content.empty() && content != Json("");
	const bool hermes = f.tool_format == ToolFormat::Hermes;
	append_text(content, (hermes && behind_text ? "\n" : "") + (hermes ? hermes_calls(calls) : listed_calls(calls, f)));
}

// A text, unless it has parts of other kinds.
Json written_result(Json content) {
	constexpr const char *kBegin = "<tool_response>\n", *kEnd = "\n</tool_response>";
	if (!content.is_array())
		return kBegin + (content.is_string() ? content.get<std::string>() : written(content, kJson)) + kEnd;
	Json all = text_part(kBegin);
	for (Json& each : content)
		if (const auto text = each.is_object() ? each.find("text") : each.end();
		    text != each.end() && text->is_string())
			append_text(all, text->get_ref<const std::string&>());
		else
			all.push_back(std::move(each));
	append_text(all, kEnd);
	return all.size() == 1 ? all[0]["text"] : all;
}

// A result, and the user's message behind it, become one message of the user: some templates refuse two in a row.
Json written_results(Json messages) {
	Json all = Json::array();
	bool results = false; // the last message of `all` has results
	for (Json& m : messages) {
		const bool result = has_role(m, "tool") || has_role(m, "function");
		if (result) { m = message("user", written_result(m.value("content", Json()))); }
		if (results && has_role(m, "user") && (m["content"].is_string() || m["content"].is_array()))
			append_content(all.back()["content"], std::move(m["content"]));
		else
			all.push_back(std::move(m));
		results = has_role(all.back(), "user") && (results || result);
	}
	return all;
}

// How a model writes a call: Hermes's form, or DeepSeek's.
std::string example(const ChatFeatures& f) {
	constexpr const char *kName = "the function's name", *kArguments = R"({"key": "value"})";
	if (f.tool_format != ToolFormat::DeepSeek)
		return hermes_calls(Json::array({{{"name", kName}, {"arguments", kArguments}}}));
	const std::string begin = own_text("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"), sep = own_text("<｜tool▁sep｜>"),
	                  end = own_text("<｜tool▁call▁end｜><｜tool▁calls▁end｜>");
	const char* form = f.tool_variant ? "{0}function{1}{3}\n```json\n{4}\n```{2}" : "{0}{3}{1}{4}{2}";
	return fmt::format(fmt::runtime(form), begin, sep, end, kName, kArguments);
}

std::string described(const Json& tools, const ChatFeatures& f) {
	std::string all =
	    "You can call functions. To call one, end your answer with its name and its arguments in this form:\n" +
	    example(f) + "\nIf no function helps, answer without a call.";
	if (f.written_calls)
		all += " Several calls are written one behind the other. Results are given to you between <tool_response> and "
		       "</tool_response>.";
	all += "\n\nThe functions, each with the JSON schema of its arguments:\n<tools>\n";
	for (const Json& tool : tools)
		all += written(tool.is_object() && tool.contains("function") ? tool["function"] : tool, kJson) + '\n';
	return all + "</tools>";
}

} // namespace

void write_tools(const ChatFeatures& f, ChatInput& in) {
	if (!in.messages.is_array()) return;
	for (Json& m : in.messages) {
		if (!f.written_calls || !m.is_object()) continue;
		const auto calls = m.find("tool_calls");
		if (calls != m.end() && calls->is_array() && !calls->empty()) write_calls(f, m);
	}
	if (!f.written_tools) return;
	if (f.written_calls) in.messages = written_results(std::move(in.messages));
	if (!in.tools.is_array() || in.tools.empty()) return;
	const std::string text = described(in.tools, f);
	in.tools = f.tools ? Json::array() : Json(nullptr); // Command R+ of 2024 refuses conversations without a list
	const bool first =
	    !in.messages.empty() && (has_role(in.messages[0], "system") || has_role(in.messages[0], "developer"));
	if (!first) in.messages.insert(in.messages.begin(), message("system", ""));
	Json& content = in.messages[0]["content"];
	append_text(content, (content.is_null() || content == Json("") ? "" : "\n\n") + text);
}

} // namespace kvrun
