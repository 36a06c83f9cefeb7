// The form that a request demands of an answer.
#include "tools/serve/answer_form.h"
#include "tools/serve/requests.h"
#include <algorithm>

namespace kvrun::serve {
namespace {

constexpr const char* kUnsupported = "unsupported_parameter";

[[noreturn]] void refuse(const char* field, const std::string& what) {
	throw ApiError(400, std::string(field) + " " + what, field);
}

// The schema as text: `value` is a JSON object, or a string that contains one.
std::string schema_of(const Json& value, const char* field) {
	const Json schema = value.is_string() ? json_or_null(value.get<std::string>()) : value;
	if (!schema.is_object()) refuse(field, "is not a JSON schema: an object");
	return dump(schema);
}

void read_response_format(const Json& format, const auto& give) {
	const char* field = "response_format";
	if (!format.is_object() || !format.contains("type") || !format["type"].is_string())
		refuse(field, "is not an object with a type");
	const std::string type = format["type"].get<std::string>();
	const auto only = [&](std::initializer_list<const char*> names) {
		for (const auto& item : format.items())
			if (!std::ranges::count(names, item.key()))
				refuse(field, "has " + item.key().substr(0, 40) + ", which is not supported with type " + type);
	};
	if (type == "text") return only({"type"});
	if (type == "json_object") {
		only({"type", "schema"});
		return give(field, "",
		            format.contains("schema") ? schema_of(format["schema"], field) : "{\"type\": \"object\"}");
	}
	if (type != "json_schema")
		throw ApiError(400,
		               "response_format.type is " + dump(format["type"]).substr(0, 40) +
		                   ", expected text, json_object or json_schema",
		               field, kUnsupported);
	only({"type", "json_schema"});
	const Json* wrapped = Fields(format).find("json_schema");
	if (!wrapped || !wrapped->is_object()) refuse(field, "has no object json_schema");
	for (const auto& item : wrapped->items()) {
		constexpr const char* kNames[] = {"name", "description", "schema", "strict"};
		if (!std::ranges::count(kNames, item.key()))
			refuse(field, ".json_schema has " + item.key().substr(0, 40) + ", which is not supported");
	}
	const Json* schema = Fields(*wrapped).find("schema");
	if (!schema) refuse(field, ".json_schema has no schema");
	give(field, "", schema_of(*schema, field));
}

// One of these texts, as a grammar.
std::string choice_grammar(const Json& list, const char* field) {
	std::string out = "root ::=";
	if (!list.is_array() || list.empty()) refuse(field, "is not an array of texts");
	for (const Json& text : list) {
		if (!text.is_string() || text == Json("")) refuse(field, "has " + shown(text) + ", expected a text");
		out += (out.back() == '=' ? " " : " | ") + dump(text);
	}
	return out;
}

// vLLM's: one of json, json_object, choice and grammar.
void read_structured_outputs(const Json& given, const auto& give, const Rules& rules) {
	const char* field = "structured_outputs";
	if (!given.is_object()) refuse(field, "is not an object");
	const Fields f(given, "structured_outputs.");
	if (const Json* schema = f.find("json")) give(field, "", schema_of(*schema, field));
	if (f.flag("json_object", false)) give(field, "", R"({"type": "object"})");
	if (const Json* list = f.find("choice")) give(field, choice_grammar(*list, field), "");
	if (const auto text = f.text("grammar")) give(field, *text, "");
	for (const char* name : {"regex", "structural_tag"})
		if (f.find(name))
			throw ApiError(400, std::string(field) + "." + name + " is not supported", field, kUnsupported);
	f.check_unknown({}, rules);
}

} // namespace

AnswerForm read_answer_form(const Fields& f, bool chat, const Rules& rules) {
	AnswerForm form;
	const auto give = [&](const char* field, const std::string& gbnf, const std::string& schema) {
		if (form.field)
			throw ApiError(400, std::string(field) + " and " + form.field + " both ask for a form; give one of them",
			               field);
		form.field = field, form.gbnf = gbnf, form.schema = schema;
	};
	for (const char* field : {"grammar", "guided_grammar"})
		if (const auto text = f.text(field); text && !text->empty()) {
			if (text->find('\0') != text->npos) refuse(field, "has a zero byte");
			give(field, *text, "");
		}
	for (const char* field : {"json_schema", "guided_json"})
		if (const Json* schema = f.find(field)) give(field, "", schema_of(*schema, field));
	if (const Json* list = f.find("guided_choice")) give("guided_choice", choice_grammar(*list, "guided_choice"), "");
	if (const Json* given = f.find("structured_outputs")) read_structured_outputs(*given, give, rules);
	if (const Json* format = chat ? f.find("response_format") : nullptr) read_response_format(*format, give);
	return form;
}

namespace {

// The name of a function in a tool, or in an entry of tool_choice; null if it has none.
const std::string* function_name(const Json& tool) {
	if (!tool.is_object()) return nullptr;
	const auto function = tool.find("function");
	const Json& at = function == tool.end() ? tool : *function;
	if (!at.is_object() || !at.contains("name")) return nullptr;
	return at["name"].get_ptr<const std::string*>();
}

// The functions among the tools; others are left out.
Json read_functions(const Fields& f, const Rules& rules) {
	const Json* tools = f.find("tools");
	if (tools && !tools->is_array()) throw ApiError(400, "tools is not an array", "tools");
	Json out = Json::array();
	for (const Json& t : tools ? *tools : out) {
		const Json type = t.is_object() ? t.value("type", Json("function")) : Json();
		if (type.is_string() && type != Json("function"))
			rules.ignored("tools of type " + shown(type) + " are left out: this server has functions alone");
		else if (t.is_object() && t.contains("function") && function_name(t))
			out.push_back(t);
		else
			throw ApiError(400, "tools has an entry that is not a function with a name", "tools");
	}
	return out;
}

[[noreturn]] void refuse_choice(const Json& choice) {
	throw ApiError(400,
	               "tool_choice is " + dump(choice).substr(0, 60) +
	                   ", expected none, auto, required or a function with a name",
	               "tool_choice", kUnsupported);
}

// {"mode", "tools"}: the other tools are left out.
void allow_tools(const Json& choice, const Json& allowed, Json& tools, AnswerForm& form) {
	if (!allowed.is_object() || !allowed.value("tools", Json()).is_array()) refuse_choice(choice);
	std::set<std::string> names;
	for (const Json& t : allowed["tools"])
		if (const std::string* name = function_name(t)) names.insert(*name);
	Json kept = Json::array();
	for (Json& t : tools)
		if (names.contains(*function_name(t))) kept.push_back(std::move(t));
	tools = std::move(kept);
	form.tool_choice = allowed.value("mode", Json()) == Json("required") ? "required" : "auto";
}

void read_choice(const Json& choice, Json& tools, AnswerForm& form, const Rules& rules) {
	if (const std::string* word = choice.get_ptr<const std::string*>()) {
		if (*word != "none" && *word != "auto" && *word != "required") refuse_choice(choice);
		form.tool_choice = *word;
		return;
	}
	const Json type = choice.is_object() ? choice.value("type", Json()) : Json();
	if (type == Json("allowed_tools")) return allow_tools(choice, choice.value("allowed_tools", Json()), tools, form);
	if (type.is_string() && type != Json("function")) {
		rules.ignored("tool_choice of type " + shown(type) + " is ignored: this server has functions alone");
		return;
	}
	const std::string* name = type == Json("function") && choice.contains("function") ? function_name(choice) : nullptr;
	if (!name) refuse_choice(choice);
	if (std::none_of(tools.begin(), tools.end(), [&](const Json& t) { return *function_name(t) == *name; }))
		throw ApiError(400,
		               "tool_choice names the function '" + name->substr(0, 60) + "', which is not among the tools",
		               "tool_choice");
	form.tool_choice = *name;
	form.one_call = true;
}

} // namespace

std::string read_tools(const Fields& f, AnswerForm& form, const Rules& rules) {
	Json tools = read_functions(f, rules);
	if (const Json* choice = f.find("tool_choice")) read_choice(*choice, tools, form, rules);
	if (tools.empty() && form.tool_choice == "required")
		throw ApiError(400, "tool_choice is required, but there are no tools", "tool_choice");
	const bool parallel = f.flag("parallel_tool_calls", true);
	if (tools.empty() || form.tool_choice == "none") {
		form.tool_choice.clear();
		return {};
	}
	form.one_call |= !parallel;
	for (const Json& t : tools) form.strict_tools |= t["function"].value("strict", Json()) == Json(true);
	return dump(tools);
}

Grammar Grammars::get(const AnswerForm& form, const ChatPrompt* prompt) {
	if (!form.asks()) return nullptr;
	std::string key = form.gbnf + '\0' + form.schema + '\0' + form.tool_choice + (form.one_call ? "1" : "0");
	if (prompt) { // only the end of the conversation matters: whether reasoning is open there, or may begin
		const std::string text = model_.chat_text(*prompt);
		key += '\0' + prompt->tools + '\0' + prompt->variables + '\0';
		key += text.substr(text.size() - std::min<size_t>(text.size(), 64));
	}
	std::lock_guard lock(mutex_);
	if (engine_ != model_.engine()) known_.clear();
	engine_ = model_.engine();
	const auto at = std::ranges::find(known_, key, &std::pair<std::string, Grammar>::first);
	if (at != known_.end()) {
		known_.splice(known_.begin(), known_, at);
		return known_.front().second;
	}
	kvrun_grammar_options o = KVRUN_GRAMMAR_OPTIONS_INIT;
	o.gbnf = or_null(form.gbnf), o.json_schema = or_null(form.schema), o.tool_choice = or_null(form.tool_choice);
	o.one_call = form.one_call;
	const char* field = form.field ? form.field : "tools";
	if (!rules_.strict) {
		o.payload = const_cast<Rules*>(&rules_);
		o.on_left_out = [](const char* line, void* rules) {
			static_cast<const Rules*>(rules)->ignored(std::string("a keyword is not enforced: ") + line);
		};
	}
	known_.emplace_front(key, model_.new_grammar(o, prompt, field));
	if (known_.size() > kMost) known_.pop_back();
	return known_.front().second;
}

} // namespace kvrun::serve
