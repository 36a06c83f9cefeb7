// Chat templates: the conversation as values of the template language, and the rendered text in pieces.
#include "models/chat/template.h"
#include "engine/core/utf8.h"
#include "models/jinja/interp.h"
#include <algorithm>
#include <fmt/format.h>
#include <random>
#include <utility>

namespace kvrun {
namespace {

using jinja::Run;
using jinja::Value;
using jinja::Variable;

// Roles come from a protocol, not from a user: templates put them into markers, as in <|user|>.
constexpr std::string_view kRoles[] = {"system",   "developer", "user",         "assistant", "tool",
                                       "function", "ipython",   "tool_results", "model",     "environment"};

Value text_value(Run& run, const std::string& s, const char* where) {
	if (s.size() > run.limits().value_bytes)
		run.fail("{} has {} bytes in one text, which is too much", where, s.size());
	for (size_t at = 0; at < s.size();) {
		const size_t n = utf8_char(s, at);
		if (n == 0) run.fail("{} has text that is not UTF-8: byte {} of '{}'", where, at, one_line(s, 40));
		at += n;
	}
	return jinja::text(s, /*data=*/true);
}

Value to_value(Run& run, const Json& j, const char* where) {
	const jinja::Deeper deeper(run);
	run.spend();
	const auto given = [](Value v) {
		v.data = true;
		return v;
	};
	switch (j.type()) {
	case Json::value_t::boolean: return given(jinja::boolean(j.get<bool>()));
	case Json::value_t::number_integer: return jinja::integer(j.get<int64_t>(), true);
	case Json::value_t::number_unsigned:
		if (j.get<uint64_t>() > uint64_t(INT64_MAX)) // limits of a schema, where nobody counts the last digits
			return jinja::number(double(j.get<uint64_t>()), true);
		return jinja::integer(j.get<int64_t>(), true);
	case Json::value_t::number_float: return jinja::number(j.get<double>(), true);
	case Json::value_t::string: return text_value(run, j.get_ref<const std::string&>(), where);
	case Json::value_t::array: {
		std::vector<Value> items;
		for (const Json& each : j) items.push_back(to_value(run, each, where));
		return given(run.make_list(items));
	}
	case Json::value_t::object: {
		std::vector<Value> keys, values;
		for (const auto& [key, value] : j.items()) {
			keys.push_back(text_value(run, key, where));
			values.push_back(to_value(run, value, where));
		}
		return given(run.make_dict(keys, values));
	}
	default: return given(jinja::none());
	}
}

// One message; a known role counts as the template's own text.
Value message_value(Run& run, const Json& message, size_t i) {
	if (!message.is_object()) run.fail("messages[{}] is not an object; it needs a role and a content", i);
	const auto role = message.find("role");
	if (role == message.end() || !role->is_string()) run.fail("messages[{}] has no role, such as \"user\"", i);
	std::vector<Value> keys, values;
	for (const auto& [key, value] : message.items()) {
		keys.push_back(text_value(run, key, "messages"));
		values.push_back(to_value(run, value, "messages"));
		if (key != "role") continue;
		for (std::string_view known : kRoles)
			if (values.back().str() == known) values.back().data = false;
	}
	Value v = run.make_dict(keys, values);
	v.data = true;
	return v;
}

Value messages_value(Run& run, const Json& messages) {
	if (!messages.is_array()) run.fail("messages is not an array");
	std::vector<Value> items;
	for (const Json& each : messages) items.push_back(message_value(run, each, items.size()));
	Value v = run.make_list(items);
	v.data = true;
	return v;
}

Value list_or_none(Run& run, const Json& j, const char* name) {
	if (j.is_null()) return jinja::none();
	if (!j.is_array()) run.fail("{} is not an array", name);
	return to_value(run, j, name);
}

// Where a template does not read enable_thinking, the variable that switches its reasoning, and its values.
struct Switch {
	const char* name;
	const char* shown; // in the template's text; "": any
	Json on, off;
};
const Switch kSwitches[] = {
    {"thinking", "", true, false},                          // DeepSeek V3.1 and later, Granite 3.3, Kimi K3
    {"reasoning", "", true, false},                         // North Mini Code
    {"thinking_mode", "", "enabled", "disabled"},           // MiniMax-M3
    {"thinking_budget", "", -1, 0},                         // Seed-OSS
    {"reasoning_effort", "'no_think'", "high", "no_think"}, // Hunyuan 3
    {"reasoning_effort", "\"minimal\"", "high", "minimal"}, // Solar Open
};

bool has_switch(const ChatTemplate& t, const Switch& s) {
	return t.reads(s.name) && t.text().find(s.shown) != std::string::npos;
}

void set_unless_given(Json& variables, const char* name, const Json& value) {
	if (!variables.contains(name)) variables[name] = value;
}

// The variables of the conversation, and those that the template knows by another name.
Json named_variables(const ChatTemplate& t, const ChatInput& in) {
	Json all = in.variables.is_object() ? in.variables : Json::object();
	if (t.reads("xml_tools") && !t.reads("tools")) set_unless_given(all, "xml_tools", in.tools); // SmolLM3's name
	const Json think = all.value("enable_thinking", Json()), effort = all.value("reasoning_effort", Json());
	if (effort.is_string() && t.reads("thinking_effort"))
		set_unless_given(all, "thinking_effort", effort); // Kimi K3's name
	if (!think.is_boolean() || t.reads("enable_thinking")) return all;
	for (const Switch& s : kSwitches) {
		if (!has_switch(t, s)) continue;
		if (effort == Json("none") && s.name == std::string_view("reasoning_effort")) all.erase(s.name);
		set_unless_given(all, s.name, think.get<bool>() ? s.on : s.off);
	}
	return all;
}

// The values refer to the texts of `in` and `named`.
std::vector<Variable> variables(Run& run, const ChatInput& in, const Json& named) {
	std::vector<Variable> out;
	if (!in.variables.is_null() && !in.variables.is_object()) run.fail("the variables are not an object");
	for (const auto& [name, value] : named.items()) // set first: the variables below override them
		out.push_back({text_value(run, name, "a variable").str(), to_value(run, value, "a variable")});
	out.push_back({"messages", messages_value(run, in.messages)});
	out.push_back({"tools", list_or_none(run, in.tools, "tools")});
	out.push_back({"documents", list_or_none(run, in.documents, "documents")});
	out.push_back({"add_generation_prompt", jinja::boolean(in.add_generation_prompt)});
	for (const auto& [name, token] : {std::pair("bos_token", &in.bos_token), std::pair("eos_token", &in.eos_token)}) {
		Value v = text_value(run, *token, name);
		v.data = false;
		out.push_back({name, v});
	}
	return out;
}

const std::string& own_mark() {
	static const std::string text = fmt::format("[own {:08x}{:08x}]", std::random_device()(), std::random_device()());
	return text;
}

// Adds a piece of the rendered text, between own_mark() and the next one the template's own.
void add_segment(std::vector<Rendered::Segment>& all, std::string_view text, bool from_template) {
	for (bool own = from_template;; own = !own) {
		const size_t to = from_template ? text.npos : text.find(own_mark());
		const std::string_view piece = text.substr(0, to);
		if (!all.empty() && all.back().from_template == own)
			all.back().text += piece;
		else if (!piece.empty())
			all.push_back({std::string(piece), own});
		if (to == text.npos) return;
		text.remove_prefix(to + own_mark().size());
	}
}

} // namespace

std::string own_text(std::string_view text) { return fmt::format("{0}{1}{0}", own_mark(), text); }

std::string Rendered::text() const {
	std::string all;
	for (const Segment& s : segments) all += s.text;
	return all;
}

ChatTemplate::ChatTemplate(std::string text, std::string name)
    : program_(jinja::parse(std::move(name), std::move(text))) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Rendered ChatTemplate::render(const ChatInput& in, const ChatLimits& limits) const {
	jinja::Limits l;
	l.steps = std::min(limits.steps + 1000 * (in.messages.is_array() ? in.messages.size() : 0), 10 * limits.steps);
	l.output_bytes = limits.output_bytes;
	l.value_bytes = limits.value_bytes;
	Run run(name(), l);
	run.now = in.now;
	jinja::TextBuilder out(run, jinja::TextBuilder::For::Output);
	const Json named = named_variables(*this, in);
	jinja::Interp(*program_, run, variables(run, in, named)).run(out);
	Rendered r;
	const std::string& bytes = out.bytes();
	for (size_t at = 0; at < bytes.size();) {
		const size_t start = at;
		while (at < bytes.size() && out.mark_at(at) == out.mark_at(start)) ++at;
		run.spend();
		add_segment(r.segments, std::string_view(bytes).substr(start, at - start), !out.mark_at(start));
	}
	return r;
}

bool ChatTemplate::reads(std::string_view variable) const {
	const auto found = program_->ids.find(variable);
	return found != program_->ids.end() && program_->loads[found->second];
}

bool ChatTemplate::switches_reasoning() const {
	if (reads("enable_thinking")) return true;
	if (std::none_of(std::begin(kSwitches), std::end(kSwitches), [&](const Switch& s) { return has_switch(*this, s); }))
		return false;
	ChatInput in;
	in.messages = Json::array({Json::object({{"role", "user"}, {"content", "x"}})});
	const auto prompt = [&](bool think) {
		in.variables = Json::object({{"enable_thinking", think}});
		return render(in).text();
	};
	try {
		return prompt(true) != prompt(false);
	} catch (const Error&) { return false; }
}

const std::string& ChatTemplate::text() const { return program_->source.text; }
const std::string& ChatTemplate::name() const { return program_->source.name; }

} // namespace kvrun
