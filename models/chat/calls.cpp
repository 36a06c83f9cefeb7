// Calls of tools in the text of an answer.
#include "models/chat/calls.h"
#include "models/chat/call_grammar.h"
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

Json parsed_json(std::string_view s) { return Json::parse(s, nullptr, /*allow_exceptions=*/false); }

namespace {

// Values as Python writes them, or as Gemma does. Throws kMoreText or kNoCall.
class Literals {
 public:
	Literals(std::string_view s, size_t at, std::string_view quote) : text_(s), at_(at), quote_(quote) {}
	size_t at() const { return at_; }

	[[noreturn]] static void no_call() { throw kNoCall; }
	char peek() const {
		if (at_ >= text_.size()) throw kMoreText;
		return text_[at_];
	}
	void spaces() { at_ = skip_spaces(text_, at_); }
	bool take(char c) {
		spaces();
		if (peek() != c) return false;
		++at_;
		return true;
	}
	void need(char c) {
		if (!take(c)) no_call();
	}
	bool take_word(std::string_view word) {
		bool more = false;
		if (take_marker(text_, at_, word, more)) return true;
		if (more) throw kMoreText;
		return false;
	}
	std::string name() {
		spaces();
		const size_t from = at_;
		const auto in_name = [](char c) {
			return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
			       c == '.';
		};
		while (in_name(peek())) ++at_;
		if (at_ == from) no_call();
		return std::string(text_.substr(from, at_ - from));
	}

	Json value(int depth = 0) {
		if (depth > kMaxCallNesting) no_call();
		spaces();
		if (!quote_.empty() && (peek() == quote_[0])) {
			if (!take_word(quote_)) no_call();
			const size_t end = text_.find(quote_, at_);
			if (end == text_.npos) throw kMoreText;
			Json out = std::string(text_.substr(at_, end - at_));
			at_ = end + quote_.size();
			return out;
		}
		switch (peek()) {
		case '"':
		case '\'': return quoted();
		case '[':
		case '(': {
			const char close = text_[at_++] == '[' ? ']' : ')';
			Json list = Json::array();
			while (!take(close)) {
				list.push_back(value(depth + 1));
				if (!take(',') && (spaces(), peek() != close)) no_call();
			}
			return list;
		}
		case '{': return object(depth);
		default: break;
		}
		constexpr std::pair<const char*, int> kWords[] = {{"True", 1},  {"true", 1}, {"False", 0},
		                                                  {"false", 0}, {"None", 2}, {"null", 2}};
		for (const auto& [word, is] : kWords)
			if (take_word(word)) return is == 2 ? Json() : Json(is == 1);
		const size_t from = at_;
		while (std::string_view("+-0123456789.eE").find(peek()) != std::string_view::npos) ++at_;
		const Json number = parsed_json(text_.substr(from, at_ - from));
		if (!number.is_number()) no_call();
		return number;
	}

	Json object(int depth = 0) {
		need('{');
		Json out = Json::object();
		while (!take('}')) {
			spaces();
			const bool text = peek() == '"' || peek() == '\'' || (!quote_.empty() && peek() == quote_[0]);
			const Json key = text ? value(depth + 1) : Json(name());
			if (!key.is_string()) no_call();
			need(':');
			out[key.get<std::string>()] = value(depth + 1);
			if (!take(',') && (spaces(), peek() != '}')) no_call();
		}
		return out;
	}

 private:
	Json quoted() {
		const char quote = text_[at_++];
		std::string json = "\""; // the same text as JSON, which reads escapes
		for (; peek() != quote; ++at_) {
			const char c = peek();
			if (c == '\\') {
				++at_;
				const char e = peek();
				if (e == '\'')
					json += '\'';
				else
					(json += '\\') += e;
			} else if (c == '"') {
				json += "\\\"";
			} else if (c == '\n') {
				json += "\\n";
			} else if (c == '\t') {
				json += "\\t";
			} else {
				json += c;
			}
		}
		++at_;
		Json out = parsed_json(json + "\"");
		if (!out.is_string()) no_call();
		return out;
	}

	const std::string_view text_;
	size_t at_;
	const std::string_view quote_;
};

template <class F> size_t guarded(F read) {
	try {
		return read();
	} catch (const size_t& why) { return why; }
}

size_t read_pythonic(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	return guarded([&]() -> size_t {
		bool more = false;
		size_t at = skip_spaces(text, 0);
		if (!form.begin.empty() && !take_marker(text, at, form.begin, more)) return more ? kMoreText : kNoCall;
		if (!take_marker(text, at, "<|python_start|>", more) && more && !(last && at == text.size())) return kMoreText;
		Literals l(text, at, "");
		const bool listed = l.take('['); // OLMo 3 writes one call on each line
		do {
			FoundCall call;
			if (listed && !out.empty() && l.take(']')) break;
			call.name = l.name();
			call.arguments = Json::object();
			l.need('(');
			while (!l.take(')')) {
				const std::string key = l.name();
				l.need('=');
				call.arguments[key] = l.value();
				if (!l.take(',') && (l.spaces(), l.peek() != ')')) Literals::no_call();
			}
			out.push_back(std::move(call));
			if (listed) continue;
			at = skip_spaces(text, l.at());
			size_t behind = at;
			if (take_marker(text, behind, form.end, more)) break;
			if (more && at < text.size()) return kMoreText;
			if (at == text.size() && last) break;
		} while (!listed || l.take(',') || (l.need(']'), false));
		at = l.at();
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
		call.arguments = l.object();
		out.push_back(std::move(call));
		at = skip_spaces(text, l.at());
		if (take_marker(text, at, form.variant ? "<tool_call|>" : "<end_function_call>", more)) return at;
		return last && at == text.size() ? l.at() : more ? kMoreText : kNoCall;
	});
}

// [{"name": ..., "arguments": {...}}, ...] between markers, the second of which the end of the answer may stand for.
size_t read_list(std::string_view text, std::string_view begin, std::string_view end, bool last,
                 std::vector<FoundCall>& out) {
	bool more = false;
	size_t at = 0;
	if (!take_marker(text, at, begin, more)) return more ? kMoreText : kNoCall;
	at = skip_spaces(text, at);
	if (at == text.size()) return kMoreText;
	const size_t to = json_end(text, at);
	if (to >= kNoCall) return to;
	Json list = parsed_json(text.substr(at, to - at));
	if (list.is_object()) list = Json::array({list});
	if (!list.is_array() || list.empty()) return kNoCall;
	for (const Json& c : list) {
		const auto first_of = [&](const char* a, const char* b) {
			return c.is_object() && c.contains(a) ? c[a] : c.is_object() && c.contains(b) ? c[b] : Json();
		};
		Json name = first_of("name", "tool_name"), arguments = first_of("arguments", "parameters");
		if (arguments.is_null()) arguments = Json::object();
		if (arguments.is_string()) arguments = parsed_json(arguments.get<std::string>());
		if (!name.is_string() || !arguments.is_object()) return kNoCall;
		const Json id = first_of("id", "tool_call_id");
		// Command-R's ids are the number of a call in an answer, which other answers have, too
		out.push_back(
		    {name, id.is_string() && id.get<std::string>().size() > 3 ? id.get<std::string>() : "", arguments});
	}
	if (end.empty()) return to;
	at = skip_spaces(text, to);
	if (take_marker(text, at, end, more)) return at;
	return last && at == text.size() ? to : more ? kMoreText : kNoCall;
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
		const std::string id(text.substr(at, to - at)); // functions.name:0
		std::string name = id.substr(0, id.rfind(':'));
		if (name.starts_with("functions.")) name.erase(0, 10);
		at = skip_spaces(text, to + kArguments.size());
		if (at == text.size()) return kMoreText;
		const size_t end = json_end(text, at);
		if (end >= kNoCall) return end;
		out.push_back({name, id, parsed_json(text.substr(at, end - at))});
		at = skip_spaces(text, end);
		if (!take_marker(text, at, "<|tool_call_end|>", more)) return more ? kMoreText : kNoCall;
	}
}

// The definition of an argument; null: there is none.
Json argument_schema(const Json& definitions, const std::string& function, const std::string& argument) {
	if (!definitions.is_array()) return nullptr;
	for (const Json& t : definitions) {
		const Json f = t.is_object() && t.contains("function") ? t["function"] : t;
		if (!f.is_object() || !f.contains("name") || f["name"] != Json(function) || !f.contains("parameters")) continue;
		const Json& p = f["parameters"];
		if (p.is_object() && p.contains("properties") && p["properties"].is_object() &&
		    p["properties"].contains(argument))
			return p["properties"][argument];
	}
	return nullptr;
}

// Texts stand as they are, everything else as JSON.
Json argument_value(const Json& definitions, const std::string& function, const std::string& argument,
                    std::string_view text) {
	const Json schema = argument_schema(definitions, function, argument);
	const bool is_text = schema.is_object() && schema.contains("type") && schema["type"] == Json("string");
	const Json value = is_text ? Json() : parsed_json(text);
	return is_text || value.is_discarded() ? Json(std::string(text)) : value;
}

// Markers around a name, then pairs of a key and a value.
struct PairForm {
	std::string_view name_begin, name_end, key_begin, key_end, value_begin, value_end, end;
};
size_t read_pairs(const CallForm& form, const PairForm& f, std::string_view text, bool last,
                  std::vector<FoundCall>& out) {
	bool more = false;
	size_t at = 0;
	if (!take_marker(text, at, "<tool_call>", more)) return more ? kMoreText : kNoCall;
	at = skip_spaces(text, at);
	if (at == text.size()) return kMoreText;
	if (!f.name_begin.empty() && !take_marker(text, at, f.name_begin, more)) return more ? kMoreText : kNoCall;
	const size_t name_end = f.name_end.empty() ? text.find_first_of("\n<", at) : text.find(f.name_end, at);
	if (name_end == text.npos) return text.find('\n', at) == text.npos ? kMoreText : kNoCall;
	FoundCall call{std::string(text.substr(at, name_end - at)), "", Json::object()};
	call.name.erase(call.name.find_last_not_of(kCallSpaces) + 1);
	at = name_end + f.name_end.size();
	for (;;) {
		at = skip_spaces(text, at);
		if (take_marker(text, at, f.end, more)) break;
		if (more && !(last && at == text.size())) return kMoreText;
		if (last && at == text.size()) return kNoCall;
		if (!take_marker(text, at, f.key_begin, more)) return more ? kMoreText : kNoCall;
		const size_t key_end = text.find(f.key_end, at);
		if (key_end == text.npos) return kMoreText;
		std::string key(text.substr(at, key_end - at));
		at = key_end + f.key_end.size();
		if (!f.value_begin.empty()) {
			at = skip_spaces(text, at);
			if (!take_marker(text, at, f.value_begin, more)) return more ? kMoreText : kNoCall;
		}
		const size_t value_end = text.find(f.value_end, at);
		if (value_end == text.npos) return kMoreText;
		std::string_view value = text.substr(at, value_end - at);
		if (f.value_begin.empty()) { // a line before and behind it
			if (value.starts_with('\n')) value.remove_prefix(1);
			if (value.ends_with('\n')) value.remove_suffix(1);
		}
		call.arguments[key] = argument_value(form.definitions, call.name, key, value);
		at = value_end + f.value_end.size();
	}
	out.push_back(std::move(call));
	if (f.end == "</tool_call>") return at;
	const size_t behind = at;
	at = skip_spaces(text, at);
	if (take_marker(text, at, "</tool_call>", more)) return at;
	return last && at == text.size() ? behind : more ? kMoreText : kNoCall;
}

} // namespace

size_t read_calls(const CallForm& form, std::string_view text, bool last, std::vector<FoundCall>& out) {
	switch (form.format) {
	case ToolFormat::Granite: return read_list(text, "<|tool_call|>", "", last, out);
	case ToolFormat::Phi4: return read_list(text, "<|tool_call|>", "<|/tool_call|>", last, out);
	case ToolFormat::CommandR: return read_list(text, "<|START_ACTION|>", "<|END_ACTION|>", last, out);
	case ToolFormat::Kimi: return read_kimi(text, last, out);
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
