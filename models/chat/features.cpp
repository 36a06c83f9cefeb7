// Abilities of a chat template, found by rendering small conversations with it.
#include "models/chat/features.h"
#include "engine/core/error.h"
#include "models/chat/call_grammar.h"
#include "models/chat/messages.h"
#include <utility>

namespace kvrun {
namespace {

constexpr const char *kProbe = "kvrun-probe", *kOther = "kvrun-second";
constexpr const char* kCallId = "probe1234"; // Mistral's ids have nine characters

Json tool_named(const char* name) {
	const Json parameters = Json::object({{"type", "object"}, {"properties", Json::object()}});
	const Json function = Json::object({{"name", name}, {"description", "d"}, {"parameters", parameters}});
	return Json::array({Json::object({{"type", "function"}, {"function", function}})});
}

// The rendered text; empty if the template refuses the conversation. Templates for conversations with tools may refuse
// those without.
std::string try_render(const ChatTemplate& t, const Json& messages, const Json& tools = nullptr) {
	ChatInput in;
	in.messages = messages;
	for (const Json& given : {tools, tool_named("kvrun-tool")}) {
		in.tools = given;
		try {
			return t.render(in).text();
		} catch (const Error&) {}
		if (!tools.is_null()) break;
	}
	return {};
}

bool shows(const std::string& text, const std::string& what) { return text.find(what) != text.npos; }

void probe_content(const ChatTemplate& t, ChatFeatures& f) {
	f.text_content = shows(try_render(t, Json::array({message("user", kProbe)})), kProbe);
	const std::string with_parts = try_render(t, Json::array({message("user", text_part(kProbe))}));
	// a template without support of parts prints the list in Python's notation
	f.part_content = shows(with_parts, kProbe) && !shows(with_parts, "'text'") && !shows(with_parts, "\"text\"");
	const bool parts = !f.text_content && f.part_content;
	const auto content = [&](const char* s) { return parts ? text_part(s) : Json(s); };
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

// The rendered text of an answer with a call; empty if the call is left out.
std::string render_call(const ChatTemplate& t, const Json& content, const Json& arguments) {
	Json messages = call_probe(content, arguments);
	std::string text = try_render(t, messages);
	if (!shows(text, kProbe)) { // Nemotron Nano 2 leaves out calls without a result
		messages.push_back(message("tool", "x"));
		messages[2]["tool_call_id"] = kCallId;
		text = try_render(t, messages);
	}
	return shows(text, kProbe) ? text : "";
}

void probe_tools(const ChatTemplate& t, ChatFeatures& f) {
	f.tools = shows(try_render(t, Json::array({message("user", "x")}), tool_named(kProbe)), kProbe);
	const Json arguments = Json::object({{"probe_key", "probe_value"}});
	for (const bool null_content : {false, true}) {
		const Json content = null_content ? Json(nullptr) : Json("");
		const auto takes = [&](const Json& as) {
			const std::string text = render_call(t, content, as);
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
		const Json beside = !f.text_content && f.part_content ? text_part("y") : Json("y");
		f.calls_alone = render_call(t, beside, object ? arguments : Json(arguments.dump())).empty();
	}
}

// Some templates show the reasoning of answers with calls alone. gpt-oss's refuses it beside their text.
void probe_reasoning(const ChatTemplate& t, ChatFeatures& f) {
	const bool parts = !f.text_content && f.part_content;
	const auto content = [&](const char* s) { return parts ? text_part(s) : Json(s); };
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
	if (shows(text, kMiniMaxMark) && shows(text, "<invoke name=")) return is(ToolFormat::MiniMax);
	if (shows(text, "<tool_call>") && shows(text, "<function=")) return is(ToolFormat::QwenXml);
	if (shows(text, "<tool_call>") && shows(text, "<arg_key>")) return is(ToolFormat::Glm);
	if (shows(text, "<|tool_calls_section_begin|>")) return is(ToolFormat::Kimi);
	if (shows(text, "<|START_ACTION|>")) return is(ToolFormat::CommandR);
	if (shows(text, "<start_function_call>")) return is(ToolFormat::Gemma);
	if (shows(text, "<|tool_call_start|>")) return is(ToolFormat::Pythonic, "<|tool_call_start|>", "<|tool_call_end|>");
	if (shows(text, "List of tools: ") && shows(text, "<|im_start|>")) // LFM2, whose template leaves out calls
		return is(ToolFormat::Pythonic, "<|tool_call_start|>", "<|tool_call_end|>");
	if (shows(text, "<function_calls>")) return is(ToolFormat::Pythonic, "<function_calls>", "</function_calls>");
	if (shows(text, "<|tool_call>")) {
		f.tool_variant = true;
		return is(ToolFormat::Gemma);
	}
	if (shows(text, "<|/tool_call|>") || shows(text, "<|/tool|>"))
		return is(ToolFormat::Phi4, "<|tool_call|>", "<|/tool_call|>");
	if (shows(text, "<TOOLCALL>")) return is(ToolFormat::Phi4, "<TOOLCALL>", "</TOOLCALL>");
	if (shows(text, "<tool_calls>[")) return is(ToolFormat::Phi4, "<tool_calls>", "</tool_calls>"); // Apriel
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
	if (shows(text, "<|start|>assistant to=")) return;                 // Muse Glimmer
	if (shows(text, "\"parameters\"") && shows(text, "{\"name\"")) return is(ToolFormat::Llama3);
	if (shows(text, "[func_name1(param")) return is(ToolFormat::Pythonic);
}

// Markers around reasoning and text, by a text of the template.
constexpr struct {
	const char *shown, *think_begin, *think_end, *content_begin, *content_end;
} kMarks[] = {
    {"</think>", "<think>", "</think>", "", ""},
    {"[/THINK]", "[THINK]", "[/THINK]", "", ""},
    {"<|END_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>", "", ""},
    {"<|END_RESPONSE|>", "", "", "<|START_RESPONSE|>", "<|END_RESPONSE|>"},
    {"<|END_TEXT|>", "", "", "<|START_TEXT|>", "<|END_TEXT|>"},
    {"</seed:think>", "<seed:think>", "</seed:think>", "", ""},
    {"</mm:think>", "<mm:think>", "</mm:think>", "", ""},
    {"<|channel>thought", "<|channel>thought", "<channel|>", "", ""},
    {"<|inner_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>", "", ""}, // Apertus
    {"[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", "", "[END FINAL RESPONSE]"},
    {"<|begin|>assistant<|think|>", "<|think|>", "<|end|><|begin|>assistant", "<|content|>", ""}, // Solar Open
    {"<|start|>assistant to=self<|message|>", " to=self<|message|>", "<|eom|><|start|>assistant", " to=user<|message|>",
     ""}, // Muse Glimmer
    {"<|end_of_msg|>", "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>",
     "<|close|>response<|sep|>"}, // Kimi K3
};

// Else reasoning between tags of the same name, as the template shows that of an answer: Hunyuan 3's names vary.
void find_tags(const ChatTemplate& t, ChatFeatures& f) {
	Json answer = message("assistant", f.text_content ? Json("y") : text_part("y"));
	answer[f.reasoning_field] = kOther;
	const std::string text =
	    try_render(t, Json::array({message("user", f.text_content ? Json("x") : text_part("x")), std::move(answer)}));
	const size_t at = text.find(kOther);
	if (at == text.npos) return;
	const size_t from = text.find_first_not_of(" \n", at + std::string_view(kOther).size());
	if (from == text.npos || text.compare(from, 2, "</") != 0) return;
	const size_t to = text.find('>', from);
	if (to == text.npos) return;
	const std::string end = text.substr(from, to + 1 - from), begin = '<' + end.substr(2);
	const std::string front = text.substr(0, text.find_last_not_of(" \n", at - 1) + 1);
	if (front.ends_with(begin)) f.think_begin = begin, f.think_end = end;
}

void find_marks(const ChatTemplate& t, ChatFeatures& f) {
	for (const auto& m : kMarks) {
		if (!shows(t.text(), m.shown)) continue;
		if (f.think_end.empty()) f.think_begin = m.think_begin, f.think_end = m.think_end;
		if (f.content_begin.empty()) f.content_begin = m.content_begin, f.content_end = m.content_end;
	}
	if (f.think_end.empty() && !f.reasoning_field.empty()) find_tags(t, f);
}

// What the template leaves out, and how it is written.
void choose_writing(ChatFeatures& f) {
	if (f.tool_format == ToolFormat::Harmony || (!f.text_content && !f.part_content)) return;
	const bool known = f.tool_format != ToolFormat::None, native = known && f.tool_calls;
	// DeepSeek's templates have calls alone; no description is known for other forms of such templates
	f.written_tools = !(known && f.tools) && (!native || f.tool_format == ToolFormat::DeepSeek);
	if (f.written_tools && !native) {
		f.written_calls = true;
		f.tool_format = ToolFormat::Hermes, f.tool_begin = f.tool_end = "", f.tool_variant = false;
	} else if (!f.tool_calls) {
		const std::string marker = call_marker(f);
		f.written_calls = marker == "<|tool_call_start|>" || marker == "<|tool_call|>"; // LFM2, Granite 3
	}
}

} // namespace

const char* tool_format_name(ToolFormat f) {
	constexpr const char* kNames[] = {"none",     "hermes", "mistral", "deepseek", "llama3",  "qwen_xml",
	                                  "pythonic", "gemma",  "glm",     "granite",  "harmony", "command_r",
	                                  "phi4",     "kimi",   "minimax", "shaped"};
	return kNames[size_t(f)];
}

ChatFeatures chat_features(const ChatTemplate& t) {
	ChatFeatures f;
	probe_content(t, f);
	probe_tools(t, f);
	probe_reasoning(t, f);
	f.thinking_switch = t.switches_reasoning();
	f.nine_letter_ids = shows(t.text(), "length != 9") || shows(t.text(), "length!=9");
	find_format(t.text(), f);
	find_marks(t, f);
	if (f.tool_format == ToolFormat::None && f.tool_calls) {
		f.shape = find_call_shape({t,
		                           f.object_arguments,
		                           f.null_content,
		                           !f.text_content && f.part_content,
		                           {f.think_begin, f.think_end, f.content_begin, f.content_end}});
		if (f.shape) f.tool_format = ToolFormat::Shaped;
	}
	choose_writing(f);
	return f;
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
	return !f.think_begin.empty() && !ends_with(prompt, f.think_begin) && !ends_with(prompt, f.think_end);
}

} // namespace kvrun
