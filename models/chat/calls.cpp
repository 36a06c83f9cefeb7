// Calls of tools in the text of an answer.
#include "models/chat/calls.h"
#include "models/chat/call_literals.h"
#include <algorithm>

namespace kvrun {

size_t skip_spaces(std::string_view s, size_t at) { return std::min(s.find_first_not_of(kCallSpaces, at), s.size()); }

size_t json_end(std::string_view s, size_t at) {
	int depth = 0;
	bool in_text = false;
	if (at < s.size() && s[at] != '{' && s[at] != '[') return kNoCall;
	for (; at < s.size(); ++at) {
		const char c = s[at];
		if (in_text) {
			if (c == '\\') ++at;
			if (c == '"') in_text = false;
		} else if (c == '"') {
			in_text = true;
		} else if (c == '{' || c == '[') {
			if (++depth > kMaxCallNesting) return kNoCall;
		} else if (c == '}' || c == ']') {
			if (--depth == 0) return at + 1;
		}
	}
	return kMoreText;
}

bool take_marker(std::string_view s, size_t& at, std::string_view marker, bool& more) {
	const std::string_view rest = s.substr(std::min(at, s.size()));
	if (rest.starts_with(marker)) {
		at += marker.size();
		return true;
	}
	more = rest.size() < marker.size() && marker.starts_with(rest);
	return false;
}

size_t begun(std::string_view s, std::string_view marker) {
	for (size_t n = std::min(s.size(), marker.size() - 1); n > 0; --n)
		if (s.ends_with(marker.substr(0, n))) return n;
	return 0;
}

Json parsed_json(std::string_view s) { return Json::parse(s, nullptr, /*allow_exceptions=*/false); }

namespace {

using namespace grammar;

// Reads the arguments that begin at `at` by `read`, which uses Literals. The call is reported even if they are
// incomplete.
template <class F>
size_t read_literals(Literals& l, std::string_view text, FoundCall call, F read, std::vector<FoundCall>& out) {
	call.opened = true;
	size_t why = 0;
	try {
		read();
		call.whole = true;
	} catch (const size_t& w) { why = w; }
	call.arguments = l.said();
	call.end = why == kMoreText ? text.size() : l.at();
	if (!call.whole) call.rest = text.substr(l.said_to(), call.end - l.said_to());
	if (!call.arguments.empty()) out.push_back(std::move(call));
	return why ? why : l.at();
}

template <class F> size_t guarded(F read) {
	try {
		return read();
	} catch (const size_t& why) { return why; }
}

size_t read_keywords(std::string_view text, size_t& at, std::vector<FoundCall>& out) {
	Literals l(text, at, "");
	FoundCall call;
	call.name = l.name();
	l.need('(');
	const auto arguments = [&] {
		l.say("{");
		for (bool first = true; !l.take(')'); first = false) {
			const std::string key = l.name();
			l.need('=');
			l.say_key(key, first);
			l.value();
			if (!l.take(',') && (l.spaces(), l.peek() != ')')) Literals::no_call();
		}
		l.say_end("}");
	};
	return at = read_literals(l, text, std::move(call), arguments, out);
}

size_t read_pythonic(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	return guarded([&]() -> size_t {
		bool more = false;
		size_t at = skip_spaces(text, 0);
		if (!form.begin.empty() && !take_marker(text, at, form.begin, more)) return more ? kMoreText : kNoCall;
		if (!take_marker(text, at, "<|python_start|>", more) && more && !(last && at == text.size())) return kMoreText;
		at = skip_spaces(text, at);
		if (at == text.size()) return kMoreText;
		const bool listed = text[at] == '['; // OLMo 3 writes one call on each line
		at += listed;
		const auto next = [&]() -> char { // skips white space
			at = skip_spaces(text, at);
			if (at == text.size()) throw kMoreText;
			return text[at];
		};
		for (;;) {
			if (listed && !out.empty() && next() == ']') break;
			if (read_keywords(text, at, out) >= kNoCall) return at;
			if (listed) {
				if (next() == ']') break;
				if (text[at++] != ',') return kNoCall;
				continue;
			}
			size_t behind = at = skip_spaces(text, at);
			if (take_marker(text, behind, form.end, more)) break;
			if (more && at < text.size()) return kMoreText;
			if (at == text.size()) {
				if (!last) return kMoreText;
				break;
			}
		}
		at += listed;
		const size_t behind = skip_spaces(text, at);
		if (form.end.empty()) return at;
		size_t end = behind;
		if (take_marker(text, end, form.end, more)) return end;
		return last && behind == text.size() ? at : more ? kMoreText : kNoCall;
	});
}

size_t read_gemma(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	return guarded([&]() -> size_t {
		bool more = false;
		size_t at = 0;
		if (!take_marker(text, at, form.variant ? "<|tool_call>" : "<start_function_call>", more))
			return more ? kMoreText : kNoCall;
		at = skip_spaces(text, at);
		if (!take_marker(text, at, "call:", more)) return more ? kMoreText : kNoCall;
		Literals l(text, at, form.variant ? "<|\"|>" : "<escape>");
		FoundCall call;
		call.name = l.name();
		const size_t end = read_literals(
		    l, text, std::move(call), [&] { l.object(); }, out);
		if (end >= kNoCall) return end;
		at = skip_spaces(text, end);
		if (take_marker(text, at, form.variant ? "<tool_call|>" : "<end_function_call>", more)) return at;
		return last && at == text.size() ? end : more ? kMoreText : kNoCall;
	});
}

// Reads the JSON object that begins at text[at] as arguments; returns where they end.
size_t read_arguments(std::string_view text, size_t at, FoundCall call, std::vector<FoundCall>& out) {
	if (at == text.size()) return kMoreText;
	if (text[at] != '{') return kNoCall;
	JsonPrefix p = json_prefix(text, at);
	const size_t end = json_end(text, at);
	call.opened = true;
	call.whole = p.whole && end == p.end;
	call.arguments = std::move(p.text);
	call.end = end == kMoreText ? text.size() : end == kNoCall ? p.end : end;
	if (!call.whole) call.rest = text.substr(p.end, call.end - p.end);
	const bool whole = call.whole;
	out.push_back(std::move(call));
	return whole || end >= kNoCall ? end : kNoCall;
}

// Position after the string that begins with the quote s[at]; npos: it has not ended.
size_t text_end(std::string_view s, size_t at) {
	for (++at; at < s.size() && s[at] != '"'; ++at)
		if (s[at] == '\\') ++at;
	return at < s.size() ? at + 1 : s.npos;
}

// Command-R's ids number the calls of one answer, so they repeat in other answers.
bool id_counts(std::string_view key, const std::string& id) {
	return key == "id" || (key == "tool_call_id" && id.size() > 3);
}

// Name and the arguments received so far, of a call that has its name before the arguments.
FoundCall object_begun(std::string_view text, size_t at) {
	FoundCall call;
	for (++at;;) { // after { or ,
		at = skip_spaces(text, at);
		if (at == text.size() || text[at] != '"') return call;
		const size_t key_end = text_end(text, at);
		if (key_end == text.npos) return call;
		const std::string_view key = text.substr(at + 1, key_end - at - 2);
		at = skip_spaces(text, key_end);
		if (at == text.size() || text[at] != ':') return call;
		at = skip_spaces(text, at + 1);
		if (at == text.size()) return call;
		if (key == "arguments" || key == "parameters") {
			std::vector<FoundCall> found;
			if (!call.name.empty()) read_arguments(text, at, call, found);
			return found.empty() ? call : found[0];
		}
		const bool nested = text[at] == '{' || text[at] == '[';
		const size_t end = text[at] == '"' ? text_end(text, at)
		                   : nested        ? json_end(text, at)
		                                   : text.find_first_of(",}", at);
		if (end >= kNoCall) return call;
		const Json value = parsed_json(text.substr(at, end - at));
		if (value.is_string() && (key == "name" || key == "tool_name")) call.name = value;
		if (value.is_string() && id_counts(key, value)) call.id = value;
		at = skip_spaces(text, end);
		if (at == text.size() || text[at++] != ',') return call;
	}
}

// {"name": ..., "arguments" or "parameters": {...}, optional "id"} at text[at]; arguments may be JSON in a string.
size_t read_object(std::string_view text, size_t at, std::vector<FoundCall>& out) {
	if (at == text.size()) return kMoreText;
	if (text[at] != '{') return kNoCall;
	FoundCall call = object_begun(text, at);
	const size_t end = json_end(text, at);
	const Json c = end >= kNoCall ? Json() : parsed_json(text.substr(at, end - at));
	if (!c.is_object()) {
		if (call.opened) out.push_back(std::move(call));
		return end >= kNoCall ? end : kNoCall;
	}
	const auto member = [&](const char* a, const char* b) { return c.value(c.contains(a) ? a : b, Json()); };
	for (const char* key : {"id", "tool_call_id"})
		if (const Json id = c.value(key, Json()); id.is_string() && id_counts(key, id)) call.late_id = id;
	if (!call.opened) {
		const Json name = member("name", "tool_name");
		Json arguments = member("arguments", "parameters");
		if (arguments.is_string()) arguments = parsed_json(arguments.get<std::string>());
		if (arguments.is_null()) arguments = Json::object();
		if (!name.is_string() || !arguments.is_object()) return kNoCall;
		call.name = name;
		call.arguments = arguments.dump();
		call.whole = true;
	}
	call.end = end;
	out.push_back(std::move(call));
	return end;
}

// <tool_call>{...}</tool_call>. The model's end-of-turn token may replace the end marker.
size_t read_hermes(std::string_view text, bool last, std::vector<FoundCall>& out) {
	bool more = false;
	size_t at = 0;
	if (!take_marker(text, at, "<tool_call>", more)) return more ? kMoreText : kNoCall;
	const size_t end = read_object(text, skip_spaces(text, at), out);
	if (end >= kNoCall) return end;
	at = skip_spaces(text, end);
	if (take_marker(text, at, "</tool_call>", more) || (last && at == text.size())) return at;
	return more ? kMoreText : kNoCall;
}

// [{...}, ...] or one object
size_t read_objects(std::string_view text, size_t at, std::vector<FoundCall>& out) {
	if (at < text.size() && text[at] == '{') return read_object(text, at, out);
	if (at < text.size() && text[at] != '[') return kNoCall;
	for (++at;; ++at) { // after [ or ,
		at = skip_spaces(text, at);
		if (at >= text.size()) return kMoreText;
		at = read_object(text, at, out);
		if (at >= kNoCall) return at;
		at = skip_spaces(text, at);
		if (at == text.size()) return kMoreText;
		if (text[at] == ']') return at + 1;
		if (text[at] != ',') return kNoCall;
	}
}

// Calls between markers; the end of the answer may replace the second marker.
size_t read_list(std::string_view text, std::string_view begin, std::string_view end, bool last,
                 std::vector<FoundCall>& out) {
	bool more = false;
	size_t at = 0;
	if (!take_marker(text, at, begin, more)) return more ? kMoreText : kNoCall;
	const size_t to = read_objects(text, skip_spaces(text, at), out);
	if (to >= kNoCall || end.empty()) return to;
	at = skip_spaces(text, to);
	if (take_marker(text, at, end, more)) return at;
	return last && at == text.size() ? to : more ? kMoreText : kNoCall;
}

// [TOOL_CALLS][{...}, ...], or [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}
size_t read_mistral(std::string_view text, std::vector<FoundCall>& out) {
	bool more = false;
	size_t at = 0;
	if (!take_marker(text, at, "[TOOL_CALLS]", more)) return more ? kMoreText : kNoCall;
	at = skip_spaces(text, at);
	if (at == text.size()) return kMoreText;
	if (text[at] == '[') return read_objects(text, at, out);
	constexpr std::string_view kArguments = "[ARGS]", kId = "[CALL_ID]";
	const size_t arguments = text.find(kArguments, at);
	if (text.find('\n', at) < arguments) return kNoCall; // no line break is allowed before them
	if (arguments == text.npos) return kMoreText;
	const std::string_view front = text.substr(at, arguments - at);
	const size_t id = front.find(kId);
	FoundCall call;
	call.name = front.substr(0, id);
	if (id != front.npos) call.id = front.substr(id + kId.size());
	return read_arguments(text, skip_spaces(text, arguments + kArguments.size()), std::move(call), out);
}

size_t read_deepseek(std::string_view text, std::vector<FoundCall>& out) {
	constexpr std::string_view kBegin = "<｜tool▁call▁begin｜>", kSep = "<｜tool▁sep｜>", kEnd = "<｜tool▁call▁end｜>",
	                           kAllEnd = "<｜tool▁calls▁end｜>", kFence = "```json", kFenceEnd = "```";
	bool more = false;
	size_t at = 0;
	if (!take_marker(text, at, "<｜tool▁calls▁begin｜>", more)) return more ? kMoreText : kNoCall;
	while (true) {
		at = skip_spaces(text, at);
		if (take_marker(text, at, kAllEnd, more)) return at;
		if (more) return kMoreText;
		if (!take_marker(text, at, kBegin, more)) return more ? kMoreText : kNoCall;
		const size_t sep = text.find(kSep, at);
		if (text.find('\n', at) < sep) return kNoCall; // a name has no line break
		if (sep == text.npos) return kMoreText;
		FoundCall call;
		call.name = text.substr(at, sep - at); // or the word "function", and the name on the next line
		at = sep + kSep.size();
		if (at == text.size()) return kMoreText;
		size_t json = skip_spaces(text, at);
		if (json < text.size() && text[json] != '{') {
			const size_t line = text.find('\n', at);
			if (line == text.npos) return kMoreText;
			call.name = text.substr(at, line - at);
			json = skip_spaces(text, line);
			if (!take_marker(text, json, kFence, more)) return more ? kMoreText : kNoCall;
			json = skip_spaces(text, json);
		}
		const size_t end = read_arguments(text, json, std::move(call), out);
		if (end >= kNoCall) return end;
		at = skip_spaces(text, end);
		if (take_marker(text, at, kFenceEnd, more)) at = skip_spaces(text, at);
		if (more) return kMoreText;
		if (!take_marker(text, at, kEnd, more)) return more ? kMoreText : kNoCall;
	}
}

// One object; others may follow, separated by ; or white space. Llama 4 has two markers, both in front if the template
// wrote them, or around the object.
size_t read_llama3(std::string_view text, std::vector<FoundCall>& out) {
	size_t at = skip_spaces(text, 0);
	for (const char* marker : {"<|python_tag|>", "<|python_start|>", "<|python_end|>"}) {
		bool more = false;
		if (!take_marker(text, at, marker, more) && more) return kMoreText;
		at = skip_spaces(text, at);
	}
	return read_object(text, at, out);
}

size_t read_kimi(std::string_view text, bool last, std::vector<FoundCall>& out) {
	bool more = false;
	size_t at = 0;
	if (!take_marker(text, at, "<|tool_calls_section_begin|>", more)) return more ? kMoreText : kNoCall;
	for (;;) {
		at = skip_spaces(text, at);
		if (take_marker(text, at, "<|tool_calls_section_end|>", more)) return at;
		if (more) return last && !out.empty() && at == text.size() ? at : kMoreText;
		if (!take_marker(text, at, "<|tool_call_begin|>", more)) return more ? kMoreText : kNoCall;
		constexpr std::string_view kArguments = "<|tool_call_argument_begin|>";
		const size_t to = text.find(kArguments, at);
		if (text.find('\n', at) < to) return kNoCall;
		if (to == text.npos) return kMoreText;
		FoundCall call;
		call.id = text.substr(at, to - at); // functions.name:0
		call.name = call.id.substr(0, call.id.rfind(':'));
		if (call.name.starts_with("functions.")) call.name.erase(0, 10);
		const size_t end = read_arguments(text, skip_spaces(text, to + kArguments.size()), std::move(call), out);
		if (end >= kNoCall) return end;
		at = skip_spaces(text, end);
		if (!take_marker(text, at, "<|tool_call_end|>", more)) return more ? kMoreText : kNoCall;
	}
}

const Json* member(const Json* of, const std::string& key) {
	if (!of || !of->is_object()) return nullptr;
	const auto found = of->find(key);
	return found == of->end() ? nullptr : &*found;
}

// The definition of a function: the element of the array, or the element's member "function".
const Json* function_of(const Json& element) {
	const Json* inner = member(&element, "function");
	return inner ? inner : &element;
}
const std::string* name_of(const Json& element) { // null: it has none
	const Json* n = member(function_of(element), "name");
	return n ? n->get_ptr<const std::string*>() : nullptr;
}

// Null if there is none. Definitions are not copied, because this runs for every piece of an answer.
const Json* find_function(const Json& definitions, std::string_view name) {
	if (!definitions.is_array()) return nullptr;
	for (const Json& t : definitions)
		if (const std::string* n = name_of(t); n && *n == name) return function_of(t);
	return nullptr;
}

// The types that the function's schema allows for the argument.
Types argument_types(const Json& definitions, const std::string& function, const std::string& argument) {
	const Json* parameters = member(find_function(definitions, function), "parameters");
	const Json* schema = member(member(parameters, "properties"), argument);
	return schema ? allowed_types(*schema, *parameters) : kAllTypes;
}

// Whether the text begins like JSON of one of the types, apart from strings.
bool may_be_json(Types types, std::string_view text) {
	text.remove_prefix(skip_spaces(text, 0));
	if (text.empty()) return types & ~kStrings;
	const auto word = [&](std::string_view w) { return w.starts_with(text.substr(0, w.size())); };
	switch (text[0]) {
	case '{': return types & kObjects;
	case '[': return types & kArrays;
	case 'n': return (types & kNulls) && word("null");
	case 't': return (types & kBooleans) && word("true");
	case 'f': return (types & kBooleans) && word("false");
	default: return (types & (kIntegers | kFractions)) && (text[0] == '-' || (text[0] >= '0' && text[0] <= '9'));
	}
}
bool is_surely_text(Types types, std::string_view begin) { return bare_strings(types) && !may_be_json(types, begin); }

std::string text_json(std::string_view text) { return open_text_json(text) + '"'; }

// Strings are written without quotes, other values as JSON.
std::string value_json(Types types, std::string_view text) {
	if (is_surely_text(types, text)) return text_json(text);
	const Json value = parsed_json(text);
	const bool is_text = value.is_discarded() || (bare_strings(types) && !has_type(value, types & ~kStrings));
	return is_text ? text_json(text) : value.dump();
}

// Markers around a name, then pairs of a key and a value. The first marker of all may be missing before a name that has
// a marker of its own; what follows the name must then show that this is a call.
struct PairForm {
	std::string_view name_begin, name_end, key_begin, key_end, value_begin, value_end, end;
};
size_t read_pairs(const CallForm& form, const PairForm& f, std::string_view text, bool last,
                  std::vector<FoundCall>& out) {
	bool more = false;
	size_t at = 0;
	const bool lone = !f.name_begin.empty() && text.starts_with(f.name_begin);
	if (!lone && !take_marker(text, at, "<tool_call>", more)) return more ? kMoreText : kNoCall;
	at = skip_spaces(text, at);
	if (at == text.size()) return kMoreText;
	if (!f.name_begin.empty() && !take_marker(text, at, f.name_begin, more)) return more ? kMoreText : kNoCall;
	const size_t name_end = f.name_end.empty() ? text.find_first_of("\n<", at) : text.find(f.name_end, at);
	if (name_end == text.npos) return text.find('\n', at) == text.npos ? kMoreText : kNoCall;
	FoundCall call;
	call.name = text.substr(at, name_end - at);
	call.name.erase(call.name.find_last_not_of(kCallSpaces) + 1);
	call.opened = !lone;
	call.arguments.assign(1, '{');
	at = name_end + f.name_end.size();
	const auto not_whole = [&](size_t why) {
		call.end = why == kMoreText ? text.size() : at;
		call.rest = text.substr(std::min(at, call.end), call.end - std::min(at, call.end));
		out.push_back(std::move(call));
		return why;
	};
	const auto unless_more = [&] { return not_whole(more ? kMoreText : kNoCall); };
	for (;;) {
		at = skip_spaces(text, at);
		if (take_marker(text, at, f.end, more)) break;
		if (more && !(last && at == text.size())) return not_whole(kMoreText);
		if (last && at == text.size()) return not_whole(kNoCall);
		if (!take_marker(text, at, f.key_begin, more)) return unless_more();
		call.opened = true;
		const size_t key_end = text.find(f.key_end, at);
		if (key_end == text.npos) return not_whole(kMoreText);
		const std::string key(text.substr(at, key_end - at));
		at = key_end + f.key_end.size();
		if (!f.value_begin.empty()) {
			at = skip_spaces(text, at);
			if (!take_marker(text, at, f.value_begin, more)) return unless_more();
		} else if (text.substr(at).starts_with('\n')) {
			++at; // a line break before and after the value
		} else if (at == text.size()) {
			return not_whole(kMoreText);
		}
		const std::string front = fmt::format("{}{}:", call.arguments.size() > 1 ? "," : "", text_json(key));
		const std::string_view rest = text.substr(at);
		const size_t n = rest.find(f.value_end);
		const Types types = argument_types(form.definitions, call.name, key);
		if (n == rest.npos) {
			if (is_surely_text(types, rest)) {
				std::string end = f.value_begin.empty() ? "\n" : "";
				end += f.value_end;
				const size_t held = std::max(begun(rest, end), begun(rest, f.value_end));
				const size_t shown = whole_characters(rest.substr(0, rest.size() - held));
				call.arguments += front + open_text_json(rest.substr(0, shown));
				at += shown;
			}
			return not_whole(kMoreText);
		}
		std::string_view value = rest.substr(0, n);
		if (f.value_begin.empty() && value.ends_with('\n')) value.remove_suffix(1);
		call.arguments += front + value_json(types, value);
		at += n + f.value_end.size();
	}
	call.arguments += '}';
	call.whole = call.opened = true;
	call.end = at;
	out.push_back(std::move(call));
	if (f.end == "</tool_call>") return at;
	const size_t behind = at;
	at = skip_spaces(text, at);
	if (take_marker(text, at, "</tool_call>", more)) return at;
	return last && at == text.size() ? behind : more ? kMoreText : kNoCall;
}

// A value of ToolFormat::MiniMax, as JSON: text, or members of an object or items of a list between tags. `at`: behind
// the tag `key`. Returns where its end tag ends.
size_t read_tagged(std::string_view text, size_t at, const std::string& key, const Json* schema, const Json& root,
                   int depth, std::string& json) {
	const std::string mark = kMiniMaxMark, end = mark + "</" + key + ">";
	const Types types = schema ? allowed_types(*schema, root) : kAllTypes;
	bool more = false;
	std::string first = mark + "<";
	size_t inner = at;
	if (const bool tag = take_marker(text, inner, first, more); !tag || text.substr(inner).starts_with('/')) {
		if (more || inner == text.size()) return kMoreText;
		const size_t to = text.find(mark, at);
		if (to == text.npos) return kMoreText;
		const std::string_view value = text.substr(at, to - at);
		at = to;
		if (!take_marker(text, at, end, more)) return more ? kMoreText : kNoCall;
		const bool empty = value.empty() && !(types & kStrings);
		json = empty && (types & kArrays) ? "[]" : empty && (types & kObjects) ? "{}" : value_json(types, value);
		return at;
	}
	if (depth > kMaxCallNesting) return kNoCall;
	std::vector<std::pair<std::string, std::string>> parts;
	const bool may_list = types & kArrays;
	while (!take_marker(text, at, end, more)) {
		if (more || at == text.size()) return kMoreText;
		if (!take_marker(text, at, first, more)) return more ? kMoreText : kNoCall;
		const size_t to = text.find('>', at);
		if (to == text.npos) return kMoreText;
		const std::string name(text.substr(at, to - at));
		const Json* own = member(member(schema, "properties"), name);
		if (!own && may_list) own = member(schema, "items");
		std::string value;
		at = read_tagged(text, to + 1, name, own, root, depth + 1, value);
		if (at >= kNoCall) return at;
		parts.emplace_back(name, std::move(value));
	}
	const bool items = std::ranges::all_of(parts, [](const auto& p) { return p.first == "item"; });
	const bool list = may_list && (items || !(types & kObjects));
	for (const auto& [name, value] : parts)
		json += (json.empty() ? "" : ",") + (list ? value : text_json(name) + ":" + value);
	json = (list ? "[" : "{") + json + (list ? "]" : "}");
	return at;
}

size_t read_minimax(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	const std::string mark = kMiniMaxMark;
	bool more = false;
	size_t at = 0;
	if (!take_marker(text, at, mark + "<tool_call>", more)) return more ? kMoreText : kNoCall;
	for (;;) {
		at = skip_spaces(text, at);
		if (!out.empty() && take_marker(text, at, mark + "</tool_call>", more)) return at;
		if (!out.empty() && last && at == text.size()) return at;
		if (more) return kMoreText;
		if (!take_marker(text, at, mark + "<invoke name=\"", more)) return more ? kMoreText : kNoCall;
		const size_t name_end = text.find("\">", at);
		if (name_end == text.npos) return text.find('\n', at) == text.npos ? kMoreText : kNoCall;
		FoundCall call;
		call.name = text.substr(at, name_end - at);
		call.opened = true;
		call.arguments.assign(1, '{');
		at = name_end + 2;
		const Json* function = find_function(form.definitions, call.name);
		const Json none, *parameters = member(function, "parameters");
		size_t why = 0;
		while (at = skip_spaces(text, at), !take_marker(text, at, mark + "</invoke>", more)) {
			size_t tag = at;
			const bool begins = !more && take_marker(text, tag, mark + "<", more);
			const size_t to = begins ? text.find('>', tag) : text.npos;
			if (to == text.npos) {
				why = begins || more ? kMoreText : kNoCall;
				break;
			}
			const std::string key(text.substr(tag, to - tag));
			const std::string front = fmt::format("{}{}:", call.arguments.size() > 1 ? "," : "", text_json(key));
			std::string value;
			const size_t end = read_tagged(text, to + 1, key, member(member(parameters, "properties"), key),
			                               parameters ? *parameters : none, 0, value);
			if (end >= kNoCall) {
				const std::string_view rest = text.substr(to + 1);
				const size_t n = std::min(rest.find(mark), rest.size() - begun(rest, mark));
				const bool text_alone = (mark + "</" + key + ">").starts_with(rest.substr(n));
				if (end == kMoreText && text_alone &&
				    is_surely_text(argument_types(form.definitions, call.name, key), rest.substr(0, n))) {
					const size_t shown = whole_characters(rest.substr(0, n));
					call.arguments += front + open_text_json(rest.substr(0, shown));
					at = to + 1 + shown;
				}
				why = end;
				break;
			}
			call.arguments += front + value;
			at = end;
		}
		if (why) {
			call.end = why == kMoreText ? text.size() : at;
			call.rest = text.substr(std::min(at, call.end), call.end - std::min(at, call.end));
			out.push_back(std::move(call));
			return why;
		}
		call.arguments += '}';
		call.whole = true, call.end = at;
		out.push_back(std::move(call));
	}
}

} // namespace

bool defines(const Json& definitions, std::string_view function) { return find_function(definitions, function); }

bool bare_strings(Types types) { return types != kAllTypes && (types & kStrings); }

std::vector<std::string> lone_beginnings(const CallForm& form) {
	std::vector<std::string> out;
	if (form.format != ToolFormat::QwenXml || !form.definitions.is_array()) return out;
	for (const Json& t : form.definitions)
		if (const std::string* name = name_of(t)) out.push_back("<function=" + *name + ">");
	return out;
}

size_t read_calls(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	switch (form.format) {
	case ToolFormat::Hermes: return read_hermes(text, last, out);
	case ToolFormat::Mistral: return read_mistral(text, out);
	case ToolFormat::DeepSeek: return read_deepseek(text, out);
	case ToolFormat::Llama3: return read_llama3(text, out);
	case ToolFormat::Granite: return read_list(text, "<|tool_call|>", "", last, out);
	case ToolFormat::Phi4: return read_list(text, form.begin, form.end, last, out);
	case ToolFormat::CommandR: return read_list(text, "<|START_ACTION|>", "<|END_ACTION|>", last, out);
	case ToolFormat::Kimi: return read_kimi(text, last, out);
	case ToolFormat::MiniMax: return read_minimax(form, text, last, out);
	case ToolFormat::Gemma: return read_gemma(form, text, last, out);
	case ToolFormat::Pythonic: return read_pythonic(form, text, last, out);
	case ToolFormat::QwenXml:
		return read_pairs(form, {"<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>"}, text, last,
		                  out);
	case ToolFormat::Glm:
		return read_pairs(form, {"", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"},
		                  text, last, out);
	default: return kNoCall;
	}
}

} // namespace kvrun
