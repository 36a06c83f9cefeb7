// Values of arguments in forms other than JSON.
#pragma once
#include "models/chat/calls.h"
#include "models/chat/json_prefix.h"
#include <fmt/format.h>

namespace kvrun {

// Reads values in the notation of Python or of Gemma. Throws kMoreText or kNoCall. said(): the values read so far as
// JSON, as far as they are certain when it throws.
class Literals {
 public:
	Literals(std::string_view s, size_t at, std::string_view quote) : text_(s), at_(at), quote_(quote) {}
	size_t at() const { return at_; }
	const std::string& said() const { return said_; }
	size_t said_to() const { return said_to_; } // position of the first byte that is not in said()

	void say(std::string_view json) {
		said_ += std::exchange(pending_, {});
		said_ += json;
		said_to_ = at_;
	}
	void say_end(std::string_view json) { // end of a list or object
		pending_.clear();
		say(json);
	}
	// A comma and a key are said together with the value that follows.
	void say_key(const std::string& key, bool first) {
		pending_ = fmt::format("{}{}:", first ? "" : ",", Json(key).dump());
	}

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

	void value(int depth = 0) {
		if (depth > kMaxCallNesting) no_call();
		spaces();
		if (at_text()) return say(text(/*is_value=*/true));
		switch (peek()) {
		case '[':
		case '(': {
			const char close = text_[at_++] == '[' ? ']' : ')';
			say("[");
			for (bool first = true; !take(close); first = false) {
				if (!first) pending_ = ",";
				value(depth + 1);
				if (!take(',') && (spaces(), peek() != close)) no_call();
			}
			return say_end("]");
		}
		case '{': return object(depth);
		default: break;
		}
		constexpr std::pair<const char*, int> kWords[] = {{"True", 1},  {"true", 1}, {"False", 0},
		                                                  {"false", 0}, {"None", 2}, {"null", 2}};
		for (const auto& [word, is] : kWords)
			if (take_word(word)) return say(is == 2 ? "null" : is == 1 ? "true" : "false");
		const size_t from = at_;
		while (std::string_view("+-0123456789.eE").find(peek()) != std::string_view::npos) ++at_;
		const Json number = parsed_json(text_.substr(from, at_ - from));
		if (!number.is_number()) no_call();
		say(number.dump());
	}

	void object(int depth = 0) {
		need('{');
		say("{");
		for (bool first = true; !take('}'); first = false) {
			spaces();
			const std::string key = at_text() ? parsed_json(text(/*is_value=*/false)).get<std::string>() : name();
			need(':');
			say_key(key, first);
			value(depth + 1);
			if (!take(',') && (spaces(), peek() != '}')) no_call();
		}
		say_end("}");
	}

 private:
	bool at_text() const { return peek() == '"' || peek() == '\'' || (!quote_.empty() && peek() == quote_[0]); }
	// A string as JSON. is_value: the received part of an unfinished string is said.
	std::string text(bool is_value) {
		if (quote_.empty() || peek() != quote_[0]) return quoted(is_value);
		if (!take_word(quote_)) no_call();
		const size_t from = at_, end = text_.find(quote_, at_);
		if (end == text_.npos) {
			const size_t n =
			    whole_characters(text_.substr(from, text_.size() - from - begun(text_.substr(from), quote_)));
			at_ = from + n;
			if (is_value) say(open_text_json(text_.substr(from, n)));
			throw kMoreText;
		}
		at_ = end + quote_.size();
		return open_text_json(text_.substr(from, end - from)) + '"';
	}
	std::string quoted(bool is_value) {
		const char quote = text_[at_++];
		std::string json(1, '"'); // rewritten as JSON, whose parser resolves escapes
		for (;; ++at_) {
			const size_t here = at_;
			if (at_ + (text_[std::min(at_, text_.size() - 1)] == '\\') >= text_.size()) {
				at_ = here;
				end_early(json, is_value);
			}
			const char c = text_[at_];
			if (c == quote) break;
			if (c == '\\') {
				const char e = text_[++at_];
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
		const Json out = parsed_json(json += '"');
		if (!out.is_string()) no_call();
		return out.dump();
	}
	[[noreturn]] void end_early(const std::string& json, bool is_value) {
		std::string out;
		size_t taken = 0;
		if (!open_json_text(std::string_view(json).substr(1), out, taken)) no_call();
		if (is_value) say(out);
		throw kMoreText;
	}

	const std::string_view text_;
	size_t at_;
	const std::string_view quote_;
	std::string said_, pending_;
	size_t said_to_ = 0;
};

} // namespace kvrun
