// Abilities of a chat template, found by rendering small conversations with it.
#include "models/chat/features.h"
#include "engine/core/error.h"
#include "engine/core/json_reader.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <utility>
#include <xxhash.h>

namespace kvrun {
namespace {

constexpr const char *kProbe = "kvrun-probe", *kOther = "kvrun-second";
constexpr const char* kCallId = "probe1234"; // Mistral's ids have nine characters

// The rendered text; empty if the template refuses the conversation.
std::string try_render(const ChatTemplate& t, Json messages, Json tools = nullptr) {
	ChatInput in;
	in.messages = std::move(messages);
	in.tools = std::move(tools);
	try {
		return t.render(in).text();
	} catch (const Error&) { return {}; }
}

bool shows(const std::string& text, const std::string& what) { return text.find(what) != text.npos; }

Json message(const char* role, Json content) {
	Json m = Json::object();
	m["role"] = role;
	m["content"] = std::move(content);
	return m;
}
Json part(const std::string& text) { return Json::array({Json::object({{"type", "text"}, {"text", text}})}); }

void probe_content(const ChatTemplate& t, ChatFeatures& f) {
	f.text_content = shows(try_render(t, Json::array({message("user", kProbe)})), kProbe);
	const std::string with_parts = try_render(t, Json::array({message("user", part(kProbe))}));
	// a template without support of parts prints the list in Python's notation
	f.part_content = shows(with_parts, kProbe) && !shows(with_parts, "'text'") && !shows(with_parts, "\"text\"");
	const bool parts = !f.text_content && f.part_content;
	const auto content = [&](const char* s) { return parts ? part(s) : Json(s); };
	const Json first = message("system", content(kProbe)), user = message("user", content("x"));
	f.system_role = shows(try_render(t, Json::array({first, user})), kProbe);
	const std::string two = try_render(t, Json::array({first, message("system", content(kOther)), user}));
	f.several_system = shows(two, kProbe) && shows(two, kOther);
}

Json call_probe(const Json& content, const Json& arguments) {
	Json function = Json::object({{"name", kProbe}, {"arguments", arguments}});
	Json call = Json::object({{"id", kCallId}, {"type", "function"}, {"function", std::move(function)}});
	Json answer = message("assistant", content);
	answer["tool_calls"] = Json::array({std::move(call)});
	return Json::array({message("user", "x"), std::move(answer)});
}

void probe_tools(const ChatTemplate& t, ChatFeatures& f) {
	const Json parameters = Json::object({{"type", "object"}, {"properties", Json::object()}});
	const Json function = Json::object({{"name", kProbe}, {"description", "d"}, {"parameters", parameters}});
	const Json tools = Json::array({Json::object({{"type", "function"}, {"function", function}})});
	f.tools = shows(try_render(t, Json::array({message("user", "x")}), tools), kProbe);
	const Json arguments = Json::object({{"probe_key", "probe_value"}});
	for (const bool null_content : {false, true}) {
		const Json content = null_content ? Json(nullptr) : Json("");
		const auto takes = [&](const Json& as) {
			const std::string text = try_render(t, call_probe(content, as));
			if (!shows(text, kProbe)) return false;
			if (shows(text, "\"probe_key\"")) return true;
			// a key in the family's own notation; not JSON inside a string, nor Python's
			return as.is_object() && shows(text, "probe_key") && shows(text, "probe_value") &&
			       !shows(text, "\\\"probe_key") && !shows(text, "'probe_key'");
		};
		const bool object = takes(arguments), text = takes(arguments.dump());
		if (f.tool_calls || (!object && !text)) continue;
		f.tool_calls = true;
		f.object_arguments = object;
		f.null_content = null_content;
	}
}

// Some templates show the reasoning of answers with calls alone. gpt-oss's refuses it beside their text.
void probe_reasoning(const ChatTemplate& t, ChatFeatures& f) {
	const bool parts = !f.text_content && f.part_content;
	const auto content = [&](const char* s) { return parts ? part(s) : Json(s); };
	const Json object = Json::object({{"a", 1}}), arguments = f.object_arguments ? object : Json(object.dump());
	const auto rendered = [&](const char* field, const Json& said, bool calls) {
		Json messages = call_probe(said, arguments);
		messages[0]["content"] = content("x");
		if (!calls) messages[1].erase("tool_calls");
		messages[1][field] = kOther;
		return try_render(t, std::move(messages));
	};
	for (const char* field : {"reasoning_content", "thinking", "reasoning"})
		for (const bool calls : {true, false}) {
			const Json none = f.null_content ? Json(nullptr) : Json("");
			if (!shows(rendered(field, calls ? none : content("y"), calls), kOther)) continue;
			f.reasoning_field = field;
			f.reasoning_beside_text = !rendered(field, content("y"), /*calls=*/true).empty();
			return;
		}
}

void find_format(const std::string& text, ChatFeatures& f) {
	const auto is = [&](ToolFormat format, const char* begin = "", const char* end = "") {
		f.tool_format = format, f.tool_begin = begin, f.tool_end = end;
	};
	if (shows(text, "<|channel|>") && shows(text, "<|message|>")) return is(ToolFormat::Harmony);
	if (shows(text, "<|open|>") && shows(text, "<|sep|>")) return is(ToolFormat::Xtml);
	if (shows(text, kMiniMaxMark) && shows(text, "<invoke name=")) return is(ToolFormat::MiniMax);
	if (shows(text, "<tool_call>") && shows(text, "<function=")) return is(ToolFormat::QwenXml);
	if (shows(text, "<tool_call>") && shows(text, "<arg_key>")) return is(ToolFormat::Glm);
	if (shows(text, "<|tool_calls_section_begin|>")) return is(ToolFormat::Kimi);
	if (shows(text, "<|START_ACTION|>")) return is(ToolFormat::CommandR);
	if (shows(text, "<start_function_call>")) return is(ToolFormat::Gemma);
	if (shows(text, "<|tool_call_start|>")) return is(ToolFormat::Pythonic, "<|tool_call_start|>", "<|tool_call_end|>");
	if (shows(text, "<function_calls>")) return is(ToolFormat::Pythonic, "<function_calls>", "</function_calls>");
	if (shows(text, "<|tool_call>")) {
		f.tool_variant = true;
		return is(ToolFormat::Gemma);
	}
	if (shows(text, "<|/tool_call|>") || shows(text, "<|/tool|>"))
		return is(ToolFormat::Phi4, "<|tool_call|>", "<|/tool_call|>");
	if (shows(text, "<TOOLCALL>")) return is(ToolFormat::Phi4, "<TOOLCALL>", "</TOOLCALL>");
	if (shows(text, "<|tool_call|>")) return is(ToolFormat::Granite);
	if (shows(text, "<tool_call>")) return is(ToolFormat::Hermes);
	if (shows(text, "[TOOL_CALLS]")) {
		f.tool_variant = shows(text, "[ARGS]");
		return is(ToolFormat::Mistral);
	}
	if (shows(text, "<｜tool▁calls▁begin｜>")) {
		f.tool_variant = shows(text, "```json");
		return is(ToolFormat::DeepSeek);
	}
	if (!shows(text, "<|eot_id|>") && !shows(text, "<|eot|>")) return; // Llama 3, Llama 4
	if (shows(text, "\"parameters\"") && shows(text, "{\"name\"")) return is(ToolFormat::Llama3);
	if (shows(text, "[func_name1(param")) return is(ToolFormat::Pythonic);
}

} // namespace

const char* tool_format_name(ToolFormat f) {
	constexpr const char* kNames[] = {"none",     "hermes", "mistral", "deepseek", "llama3",  "qwen_xml",
	                                  "pythonic", "gemma",  "glm",     "granite",  "harmony", "command_r",
	                                  "phi4",     "kimi",   "minimax", "xtml"};
	return kNames[size_t(f)];
}

ChatFeatures chat_features(const ChatTemplate& t) {
	ChatFeatures f;
	probe_content(t, f);
	probe_tools(t, f);
	probe_reasoning(t, f);
	f.thinking_switch = t.reads("enable_thinking");
	f.nine_letter_ids = shows(t.text(), "length != 9") || shows(t.text(), "length!=9");
	find_format(t.text(), f);
	constexpr std::pair<const char*, const char*> kThink[] = {
	    {"<think>", "</think>"},           {"[THINK]", "[/THINK]"},       {"<|START_THINKING|>", "<|END_THINKING|>"},
	    {"<seed:think>", "</seed:think>"}, {"<mm:think>", "</mm:think>"}, {"<|channel>thought", "<channel|>"}};
	for (const auto& [begin, end] : kThink)
		if (f.think_end.empty() && shows(t.text(), end)) f.think_begin = begin, f.think_end = end;
	if (f.tool_format == ToolFormat::Xtml) { // its templates make tags by macros
		f.think_begin = "<|open|>think<|sep|>", f.think_end = "<|close|>think<|sep|>";
		f.answer_begin = "<|open|>response<|sep|>", f.answer_end = "<|close|>response<|sep|>";
	}
	return f;
}

namespace {

constexpr size_t kMistralId = 9;

std::string joined_parts(const Json& parts, size_t i) {
	std::string all;
	for (const Json& part : parts) {
		const bool is_text = part.is_object() && part.contains("text") && part["text"].is_string();
		if (!is_text) {
			const bool typed = part.is_object() && part.contains("type") && part["type"].is_string();
			fail(Code::Invalid, "messages[{}] has a part of type {}; this model takes text only", i,
			     typed ? one_line(part["type"].get<std::string>(), 40) : "unknown");
		}
		if (!all.empty()) all += '\n';
		all += part["text"].get<std::string>();
	}
	return all;
}

// The same id for the same text, so that a result still belongs to its call.
void fit_id(Json& object, const char* field) {
	const auto at = object.find(field);
	if (at == object.end() || !at->is_string() || at->get_ref<const std::string&>().size() == kMistralId) return;
	constexpr std::string_view digits = "0123456789abcdefghijklmnopqrstuvwxyz";
	const std::string& given = at->get_ref<const std::string&>();
	uint64_t hash = XXH3_64bits(given.data(), given.size());
	std::string id;
	for (size_t i = 0; i < kMistralId; ++i, hash /= digits.size()) id += digits[hash % digits.size()];
	*at = std::move(id);
}

bool has_role(const Json& message, const char* role) { return message.value("role", Json()) == Json(role); }

std::string* text_of(Json& part) { // null: it has none
	return part.is_object() && part.contains("text") ? part["text"].get_ptr<std::string*>() : nullptr;
}

void make_parts(Json& content) {
	if (content.is_string()) content = part(content.get<std::string>());
}

// Adds the content of the message that follows, behind a blank line.
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

// Gives the system messages at the beginning the place and number that the template has for them.
void fit_system(const ChatFeatures& f, Json& messages) {
	if (!f.text_content && !f.part_content) return; // the template refused every probe
	const auto takes = [](const Json& m) { return m["content"].is_string() || m["content"].is_array(); };
	const auto is_system = [&](const Json& m) { return has_role(m, "system") && takes(m); };
	const auto begin = messages.begin(), behind = std::find_if_not(begin, messages.end(), is_system);
	if (behind == begin) return;
	auto kept = behind;
	if (!f.system_role || !f.several_system) {
		kept = begin + 1;
		for (auto m = kept; m != behind; ++m) append_content((*begin)["content"], std::move((*m)["content"]));
	}
	if (!f.system_role) {
		(*begin)["role"] = "user";
		if (behind != messages.end() && has_role(*behind, "user") && takes(*behind)) {
			append_content((*begin)["content"], std::move((*behind)["content"]));
			(*behind)["content"] = std::move((*begin)["content"]);
			kept = begin;
		}
	}
	messages.erase(kept, behind);
}

void fit_calls(const ChatFeatures& f, Json& message) {
	for (Json& call : message["tool_calls"]) {
		if (!call.is_object()) continue;
		if (f.nine_letter_ids) fit_id(call, "id");
		Json& function = call.contains("function") ? call["function"] : call;
		if (!function.is_object() || !function.contains("arguments")) continue;
		Json& arguments = function["arguments"];
		if (f.object_arguments && arguments.is_string()) {
			const std::string& text = arguments.get_ref<const std::string&>();
			Json parsed = Json::object(); // of an empty text, which some clients send for a call without arguments
			std::string why;
			const bool empty = text.find_first_not_of(" \t\r\n") == text.npos;
			if (empty || (read_json(text, {}, parsed, why) && parsed.is_object())) arguments = std::move(parsed);
		} else if (!f.object_arguments && arguments.is_object()) {
			arguments = arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
		}
	}
}

// Clients send the reasoning of earlier answers as reasoning_content.
void fit_reasoning(const ChatFeatures& f, Json& message, bool calls) {
	if (f.reasoning_field.empty() || message.contains(f.reasoning_field)) return;
	const Json given = message.value("reasoning_content", Json()), &content = message["content"];
	if (!given.is_string() || given == Json("")) return;
	const bool text = !content.is_null() && content != Json("");
	if (!calls || !text || f.reasoning_beside_text) message[f.reasoning_field] = given;
}

} // namespace

Json fit_messages(const ChatFeatures& f, Json messages) {
	if (!messages.is_array()) fail(Code::Invalid, "messages is not an array");
	for (size_t i = 0; i < messages.size(); ++i) {
		Json& m = messages[i];
		if (!m.is_object()) fail(Code::Invalid, "messages[{}] is not an object; it needs a role and a content", i);
		if (!m.contains("content")) m["content"] = nullptr;
		Json& content = m["content"];
		if (content.is_array() && !f.part_content) content = joined_parts(content, i);
		if (content.is_string() && !f.text_content && f.part_content) content = part(content.get<std::string>());
		const bool calls = m.contains("tool_calls") && m["tool_calls"].is_array() && !m["tool_calls"].empty();
		if (content.is_null() && !(calls && f.null_content)) content = "";
		if (calls && f.null_content && content.is_string() && content.get_ref<const std::string&>().empty())
			content = nullptr;
		if (calls && f.tool_calls) fit_calls(f, m);
		fit_reasoning(f, m, calls);
		if (f.nine_letter_ids) fit_id(m, "tool_call_id");
	}
	fit_system(f, messages);
	return messages;
}

static bool ends_with(const Rendered& prompt, const std::string& marker) {
	std::string text = prompt.text();
	text.erase(text.find_last_not_of(" \t\r\n") + 1);
	return text.ends_with(marker);
}

bool opens_reasoning(const ChatFeatures& f, const Rendered& prompt) {
	return !f.think_begin.empty() && ends_with(prompt, f.think_begin);
}

bool may_reason(const ChatFeatures& f, const Rendered& prompt, const Json& variables) {
	if (variables.is_object() && variables.value("enable_thinking", Json()) == Json(false)) return false;
	if (!f.answer_begin.empty() && ends_with(prompt, f.answer_begin)) return false;
	return !f.think_begin.empty() && !ends_with(prompt, f.think_begin) && !ends_with(prompt, f.think_end);
}

} // namespace kvrun
