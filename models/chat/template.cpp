// Chat templates: the conversation as values of the template language, and the rendered text in pieces.
#include "models/chat/template.h"
#include "engine/core/utf8.h"
#include "models/jinja/interp.h"
#include <algorithm>
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

std::vector<Variable> variables(Run& run, const ChatInput& in, bool xml_tools) {
	std::vector<Variable> out;
	if (!in.variables.is_null() && !in.variables.is_object()) run.fail("the variables are not an object");
	if (in.variables.is_object()) // set first: the variables below override them
		for (const auto& [name, value] : in.variables.items())
			out.push_back({text_value(run, name, "a variable").str(), to_value(run, value, "a variable")});
	out.push_back({"messages", messages_value(run, in.messages)});
	out.push_back({"tools", list_or_none(run, in.tools, "tools")});
	if (xml_tools && !in.variables.contains("xml_tools"))
		out.push_back({"xml_tools", list_or_none(run, in.tools, "tools")}); // SmolLM3's name
	out.push_back({"documents", list_or_none(run, in.documents, "documents")});
	out.push_back({"add_generation_prompt", jinja::boolean(in.add_generation_prompt)});
	for (const auto& [name, token] : {std::pair("bos_token", &in.bos_token), std::pair("eos_token", &in.eos_token)}) {
		Value v = text_value(run, *token, name);
		v.data = false;
		out.push_back({name, v});
	}
	return out;
}

} // namespace

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
	jinja::Interp(*program_, run, variables(run, in, reads("xml_tools") && !reads("tools"))).run(out);
	Rendered r;
	const std::string& bytes = out.bytes();
	for (size_t at = 0; at < bytes.size();) {
		const size_t start = at;
		while (at < bytes.size() && out.mark_at(at) == out.mark_at(start)) ++at;
		run.spend();
		r.segments.push_back({bytes.substr(start, at - start), !out.mark_at(start)});
	}
	return r;
}

bool ChatTemplate::reads(std::string_view variable) const {
	const auto found = program_->ids.find(variable);
	return found != program_->ids.end() && program_->loads[found->second];
}
const std::string& ChatTemplate::text() const { return program_->source.text; }
const std::string& ChatTemplate::name() const { return program_->source.name; }

} // namespace kvrun
