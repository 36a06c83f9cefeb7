// Calls of tools in the text of an answer.
#include "models/chat/calls.h"
#include "models/chat/call_literals.h"
#include "models/chat/calls_tagged.h"
#include <algorithm>

namespace kvrun {

size_t skip_spaces(std::string_view s, size_t at) { return std::min(s.find_first_not_of(kCallSpaces, at), s.size()); }

std::string_view without_spaces(std::string_view s) {
	s.remove_prefix(skip_spaces(s, 0));
	return s.substr(0, s.find_last_not_of(kCallSpaces) + 1);
}

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

bool take_loosely(std::string_view s, size_t& at, std::string_view marker, bool& more) {
	size_t to = at;
	for (const char c : marker) {
		if (kCallSpaces.find(c) != kCallSpaces.npos) {
			to = skip_spaces(s, to);
			continue;
		}
		more = to == s.size();
		if (more || s[to] != c) return false;
		++to;
	}
	at = to;
	return true;
}

size_t begun(std::string_view s, std::string_view marker) {
	for (size_t n = std::min(s.size(), marker.size() - 1); n > 0; --n)
		if (s.ends_with(marker.substr(0, n))) return n;
	return 0;
}

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

// Whether the object at text[at] begins with the name of a defined function; kMoreText: it may.
size_t begins_with_name(const CallForm& form, std::string_view text, size_t at) {
	bool more = false;
	for (const std::string_view part : {"{", "\"name\"", ":"}) {
		if (!take_marker(text, at, part, more)) return more ? kMoreText : kNoCall;
		at = skip_spaces(text, at);
	}
	if (at == text.size()) return kMoreText;
	if (text[at] != '"') return kNoCall;
	const size_t end = text_end(text, at);
	if (end == text.npos) return text.find('\n', at) == text.npos ? kMoreText : kNoCall;
	const Json name = parsed_json(text.substr(at, end - at));
	return name.is_string() && defines(form.definitions, name.get_ref<const std::string&>()) ? end : kNoCall;
}

// {...} of a function that is defined: in a fence, between other tags, or alone, as small models write it.
size_t read_unmarked(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	constexpr struct {
		std::string_view begin, end;
	} kAround[] = {
	    {"```json", "```"}, {"```", "```"}, {"<tools>", "</tools>"}, {"<function_call>", "</function_call>"}};
	bool more = false, begun = false;
	size_t at = skip_spaces(text, 0);
	std::string_view behind;
	for (const auto& a : kAround) {
		if (take_marker(text, at, a.begin, more)) {
			behind = a.end;
			break;
		}
		begun |= more;
	}
	at = skip_spaces(text, at);
	if (at == text.size() || begun) return kMoreText;
	if (const size_t name = begins_with_name(form, text, at); name >= kNoCall) return name;
	const size_t end = read_object(text, at, out);
	if (end >= kNoCall || behind.empty()) return end;
	at = skip_spaces(text, end);
	more = false;
	if (take_marker(text, at, behind, more)) return at;
	return more && !last ? kMoreText : end;
}

// <tool_call>{...}</tool_call>. The model's end-of-turn token may replace the end marker.
size_t read_hermes(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	bool more = false;
	size_t at = skip_spaces(text, 0);
	if (!take_marker(text, at, "<tool_call>", more)) {
		if (more || !form.definitions.is_array()) return more ? kMoreText : kNoCall;
		return read_unmarked(form, text, last, out);
	}
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

} // namespace

size_t read_calls(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	switch (form.format) {
	case ToolFormat::Hermes: return read_hermes(form, text, last, out);
	case ToolFormat::Mistral: return read_mistral(text, out);
	case ToolFormat::DeepSeek: return read_deepseek(text, out);
	case ToolFormat::Llama3: return read_llama3(text, out);
	case ToolFormat::Granite: return read_list(text, "<|tool_call|>", "", last, out);
	case ToolFormat::Phi4: return read_list(text, form.begin, form.end, last, out);
	case ToolFormat::CommandR: return read_list(text, "<|START_ACTION|>", "<|END_ACTION|>", last, out);
	case ToolFormat::Kimi: return read_kimi(text, last, out);
	case ToolFormat::MiniMax: return read_minimax(form, text, last, out);
	case ToolFormat::Shaped: return read_shaped(form, text, last, out);
	case ToolFormat::Gemma: return read_gemma(form, text, last, out);
	case ToolFormat::Pythonic: return read_pythonic(form, text, last, out);
	case ToolFormat::QwenXml:
		return read_pairs(form,
		                  {"<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", /*lines=*/true},
		                  text, last, out);
	case ToolFormat::Glm:
		return read_pairs(form, {"", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"},
		                  text, last, out);
	default: return kNoCall;
	}
}

} // namespace kvrun
