// The certain part of a JSON text of which only the beginning is known.
#include "models/chat/json_prefix.h"
#include "models/chat/calls.h"

namespace kvrun {
namespace {

// Bytes of `s` without an incomplete escape, surrogate pair or UTF-8 character at its end.
size_t complete_part(std::string_view s) {
	constexpr size_t kUnicode = 6; // \uXXXX
	size_t at = 0;
	while (at < s.size()) {
		if (s[at] != '\\') {
			++at;
			continue;
		}
		size_t n = at + 1 < s.size() && s[at + 1] == 'u' ? kUnicode : 2;
		const bool surrogate = n == kUnicode && at + 3 < s.size() && (s[at + 2] == 'd' || s[at + 2] == 'D') &&
		                       std::string_view("89abAB").find(s[at + 3]) != std::string_view::npos;
		if (surrogate) n *= 2;
		if (at + n > s.size()) return at;
		at += n;
	}
	return whole_characters(s);
}

// Position of the closing quote of the string whose first quote is s[at - 1]; npos: not received yet.
size_t closing_quote(std::string_view s, size_t at) {
	for (; at < s.size() && s[at] != '"'; ++at)
		if (s[at] == '\\') ++at;
	return at < s.size() ? at : s.npos;
}

class Reader {
 public:
	Reader(std::string_view s, size_t at) : s_(s), at_(at) { out_.end = at; }

	JsonPrefix read() {
		while (!out_.whole && out_.valid) {
			at_ = skip_spaces(s_, at_);
			if (at_ == s_.size() || !step(s_[at_])) break;
		}
		return std::move(out_);
	}

 private:
	enum class Want : uint8_t { Value, ValueOrEnd, Key, KeyOrEnd, Colon, CommaOrEnd };

	// False: more text is needed, or the text is not JSON.
	bool step(char c) {
		const bool ends = want_ == Want::ValueOrEnd || want_ == Want::KeyOrEnd || want_ == Want::CommaOrEnd;
		if (ends && !open_.empty() && c == open_.back()) return close();
		switch (want_) {
		case Want::Value:
		case Want::ValueOrEnd: return value(c);
		case Want::Key:
		case Want::KeyOrEnd: return key(c);
		case Want::Colon:
			if (c != ':') return no_json();
			pending_ += ':';
			break;
		case Want::CommaOrEnd:
			if (c != ',') return no_json();
			pending_ = ',';
			break;
		}
		want_ = want_ == Want::CommaOrEnd && open_.back() == '}' ? Want::Key : Want::Value;
		++at_;
		return true;
	}

	bool value(char c) {
		if (c == '{' || c == '[') {
			if (open_.size() == size_t(kMaxCallNesting)) return no_json();
			open_ += c == '{' ? '}' : ']';
			want_ = c == '{' ? Want::KeyOrEnd : Want::ValueOrEnd;
			emit({&c, 1}, at_ + 1);
			return true;
		}
		if (open_.empty()) return no_json();
		const bool text = c == '"';
		const size_t end = text ? closing_quote(s_, at_ + 1) : s_.find_first_of(",]} \t\r\n", at_);
		if (end == s_.npos) {
			std::string begun;
			size_t taken = 0;
			if (!text) return false;
			if (!open_json_text(s_.substr(at_ + 1), begun, taken)) return no_json();
			emit(begun, at_ + 1 + taken);
			return false;
		}
		const Json parsed = parsed_json(s_.substr(at_, end + text - at_));
		if (parsed.is_discarded()) return no_json();
		want_ = Want::CommaOrEnd;
		emit(parsed.dump(), end + text);
		return true;
	}

	bool key(char c) {
		if (c != '"') return no_json();
		const size_t end = closing_quote(s_, at_ + 1);
		if (end == s_.npos) return false;
		const Json parsed = parsed_json(s_.substr(at_, end + 1 - at_));
		if (!parsed.is_string()) return no_json();
		pending_ += parsed.dump();
		want_ = Want::Colon;
		at_ = end + 1;
		return true;
	}

	bool close() {
		const char c = open_.back();
		open_.pop_back();
		pending_.clear();
		want_ = Want::CommaOrEnd;
		emit({&c, 1}, at_ + 1);
		out_.whole = open_.empty();
		return true;
	}

	// Commas and keys are written together with the value that follows.
	void emit(std::string_view text, size_t end) {
		out_.text += std::exchange(pending_, {});
		out_.text += text;
		out_.end = at_ = end;
	}
	bool no_json() {
		out_.valid = false;
		return false;
	}

	const std::string_view s_;
	size_t at_;
	JsonPrefix out_;
	std::string open_; // closing brackets of the open objects and arrays
	std::string pending_;
	Want want_ = Want::Value;
};

} // namespace

bool open_json_text(std::string_view s, std::string& out, size_t& taken) {
	taken = complete_part(s);
	std::string json(1, '"');
	(json += s.substr(0, taken)) += '"';
	const Json begun = parsed_json(json);
	if (!begun.is_string()) return false;
	out = begun.dump();
	out.pop_back();
	return true;
}

std::string open_text_json(std::string_view s) {
	std::string json = Json(s).dump(-1, ' ', false, Json::error_handler_t::replace);
	json.pop_back();
	return json;
}

size_t whole_characters(std::string_view s) {
	for (size_t back = 1; back <= std::min<size_t>(3, s.size()); ++back) {
		const auto c = uint8_t(s[s.size() - back]);
		if ((c & 0xc0) == 0x80) continue;
		const size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
		return n > back ? s.size() - back : s.size();
	}
	return s.size();
}

JsonPrefix json_prefix(std::string_view s, size_t at) { return Reader(s, at).read(); }

} // namespace kvrun
