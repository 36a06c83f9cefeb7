// Calls whose arguments lie between tags: strings without quotes, other values as JSON, by the types of the function's
// schema.
#include "models/chat/calls_tagged.h"
#include "models/chat/json_prefix.h"
#include <algorithm>

namespace kvrun {
namespace {

using namespace grammar;

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

} // namespace

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

// An attribute that the text begins with, without its two entities.
static std::string attribute(std::string_view text) {
	std::string out(text.substr(0, text.find('"')));
	for (const auto& [entity, c] : {std::pair{"&quot;", "\""}, {"&amp;", "&"}})
		for (size_t at = 0; (at = out.find(entity, at)) != out.npos; ++at)
			out.replace(at, std::string_view(entity).size(), c);
	return out;
}

// Arguments of a call of ToolFormat::Xtml, as members of call.arguments, from `at` on, up to the call's end tag.
static size_t read_xtml_arguments(const Json& definitions, std::string_view text, size_t& at, FoundCall& call) {
	bool more = false;
	while (at = skip_spaces(text, at), !take_marker(text, at, "<|close|>call<|sep|>", more)) {
		if (more || at == text.size()) return kMoreText;
		size_t tag = at;
		const bool whole = take_marker(text, tag, "<|open|>json ", more); // all arguments as one object
		if (!whole && (more || !take_marker(text, tag, "<|open|>argument key=\"", more)))
			return more ? kMoreText : kNoCall;
		const size_t sep = text.find("<|sep|>", tag);
		if (sep == text.npos) return kMoreText;
		const std::string_view attributes = text.substr(tag, sep - tag), rest = text.substr(sep + 7),
		                       end = whole ? "<|close|>json<|sep|>" : "<|close|>argument<|sep|>";
		const std::string key = attribute(attributes);
		const Types types =
		    attributes.ends_with("type=\"string\"") ? kStrings : argument_types(definitions, call.name, key);
		const std::string front =
		    whole ? "" : fmt::format("{}{}:", call.arguments.size() > 1 ? "," : "", text_json(key));
		const size_t n = rest.find(end);
		if (n == rest.npos) {
			if (whole || types != kStrings) return kMoreText;
			const size_t shown = whole_characters(rest.substr(0, rest.size() - begun(rest, end)));
			call.arguments += front + open_text_json(rest.substr(0, shown));
			at = sep + 7 + shown;
			return kMoreText;
		}
		if (whole) {
			const Json all = parsed_json(rest.substr(0, n));
			if (!all.is_object() || call.arguments.size() > 1) return kNoCall;
			call.arguments = all.dump();
			call.arguments.pop_back();
		} else {
			call.arguments +=
			    front + (types == kStrings ? text_json(rest.substr(0, n)) : value_json(types, rest.substr(0, n)));
		}
		at = sep + 7 + n + end.size();
	}
	return 0;
}

size_t read_xtml(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	bool more = false;
	size_t at = 0;
	if (!take_marker(text, at, "<|open|>tools<|sep|>", more)) return more ? kMoreText : kNoCall;
	for (;;) {
		at = skip_spaces(text, at);
		if (!out.empty() && take_marker(text, at, "<|close|>tools<|sep|>", more)) return at;
		if (!out.empty() && last && at == text.size()) return at;
		if (more) return kMoreText;
		if (!take_marker(text, at, "<|open|>call tool=\"", more)) return more ? kMoreText : kNoCall;
		const size_t sep = text.find("<|sep|>", at);
		if (sep == text.npos) return text.find('\n', at) == text.npos ? kMoreText : kNoCall;
		FoundCall call;
		call.name = attribute(text.substr(at, sep - at));
		call.opened = true;
		call.arguments.assign(1, '{');
		at = sep + 7;
		if (const size_t why = read_xtml_arguments(form.definitions, text, at, call)) {
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

bool defines(const Json& definitions, std::string_view function) { return find_function(definitions, function); }

bool bare_strings(Types types) { return types != kAllTypes && (types & kStrings); }

std::vector<std::string> lone_beginnings(const CallForm& form) {
	std::vector<std::string> out;
	if (form.format != ToolFormat::QwenXml || !form.definitions.is_array()) return out;
	for (const Json& t : form.definitions)
		if (const std::string* name = name_of(t)) out.push_back("<function=" + *name + ">");
	return out;
}

} // namespace kvrun
