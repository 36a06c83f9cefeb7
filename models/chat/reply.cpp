// A model's answer as it comes: reasoning and calls are told from the text by their markers.
#include "models/chat/reply.h"
#include "models/chat/call_grammar.h"
#include <algorithm>
#include <fmt/format.h>

namespace kvrun {
namespace {

constexpr size_t kMore = kMoreText;
constexpr std::string_view kSpaces = kCallSpaces;

// Bytes at the end of `s` that may be the beginning of `marker`.
size_t begun(std::string_view s, std::string_view marker) {
	for (size_t n = std::min(s.size(), marker.size() - 1); n > 0; --n)
		if (s.ends_with(marker.substr(0, n))) return n;
	return 0;
}

Json parsed(std::string_view s) { return parsed_json(s); }

bool take(std::string_view s, size_t& at, std::string_view marker, bool& more) {
	return take_marker(s, at, marker, more);
}

} // namespace

Json ToolCall::json() const {
	return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

ReplyParser::ReplyParser(Options options)
    : options_(std::move(options)), state_(options_.in_reasoning ? State::Reasoning : State::Content) {
	if (options_.think_begin.empty() || options_.think_end.empty()) state_ = State::Content;
	trim_ = state_ == State::Reasoning;
	ChatFeatures f;
	f.tool_format = options_.tools, f.tool_begin = options_.tool_begin, f.tool_variant = options_.tool_variant;
	if (options_.tools != ToolFormat::Harmony) open_ = call_marker(f);
	form_ = {options_.tools, options_.tool_begin, options_.tool_end, options_.tool_variant,
	         std::move(options_.definitions)};
}

ReplyParser::Part ReplyParser::push(std::string_view text) {
	Part part;
	if (options_.tools == ToolFormat::Harmony) {
		add_pieces(part, harmony_.push(text));
		return part;
	}
	buffer_ += text;
	if (waits_ && text.find_first_of("}])>\n") == text.npos) return part; // nothing that could end a call
	while (step(part, /*last=*/false)) {}
	return part;
}

void ReplyParser::add_pieces(Part& part, std::vector<HarmonyStream::Piece> pieces) {
	for (HarmonyStream::Piece& p : pieces) {
		const State before = state_;
		state_ = p.kind == HarmonyStream::Piece::Kind::Reasoning ? State::Reasoning : State::Content;
		if (state_ != before) spaces_.clear(), trim_ = true;
		if (p.kind != HarmonyStream::Piece::Kind::Call || !add_call(part, p.name, parsed(p.text))) show(part, p.text);
	}
}

ReplyParser::Part ReplyParser::finish() {
	Part part;
	if (options_.tools == ToolFormat::Harmony) add_pieces(part, harmony_.finish());
	while (step(part, /*last=*/true)) {}
	show(part, buffer_);
	if (state_ == State::Content) part.content += spaces_;
	buffer_.clear();
	spaces_.clear();
	return part;
}

bool ReplyParser::step(Part& part, bool last) {
	if (buffer_.empty()) return false;
	return state_ == State::Reasoning ? step_reasoning(part, last) : step_content(part, last);
}

// Shows text of the present state, but for the white space at its end.
void ReplyParser::show(Part& part, std::string_view text) {
	if (trim_) text.remove_prefix(skip_spaces(text, 0));
	if (text.empty()) return;
	trim_ = false;
	std::string& to = state_ == State::Reasoning ? part.reasoning : part.content;
	const size_t end = text.find_last_not_of(kSpaces) + 1;
	if (end > 0) {
		to += spaces_;
		to += text.substr(0, end);
		spaces_.clear();
		shown_ |= state_ == State::Content;
	}
	spaces_ += text.substr(end);
}

bool ReplyParser::step_reasoning(Part& part, bool last) {
	const size_t at = buffer_.find(options_.think_end);
	if (at == buffer_.npos) {
		const size_t n = buffer_.size() - (last ? 0 : begun(buffer_, options_.think_end));
		show(part, std::string_view(buffer_).substr(0, n));
		buffer_.erase(0, n);
		return false;
	}
	show(part, std::string_view(buffer_).substr(0, at));
	buffer_.erase(0, at + options_.think_end.size());
	spaces_.clear();
	state_ = State::Content;
	trim_ = true;
	return true;
}

bool ReplyParser::step_content(Part& part, bool last) {
	const std::string_view all = buffer_;
	// reasoning, and calls without a marker, can only come first
	const size_t front = skip_spaces(all, 0);
	const bool at_front =
	    open_.empty() && (options_.tools == ToolFormat::Llama3 || options_.tools == ToolFormat::Pythonic);
	if (at_front && n_calls_ > 0 && !shown_ && front < all.size() && all[front] == ';') {
		buffer_.erase(0, front + 1); // between two calls
		return true;
	}
	if (!shown_ && n_calls_ == 0 && !options_.think_begin.empty()) {
		bool more = false;
		size_t at = front;
		if (take(all, at, options_.think_begin, more)) {
			buffer_.erase(0, at);
			spaces_.clear();
			state_ = State::Reasoning;
			trim_ = true;
			return true;
		}
		if (more && !last) return false;
	}
	if (at_front && !shown_) {
		bool more = false;
		size_t at = front;
		const bool python = options_.tools == ToolFormat::Pythonic;
		if (front == all.size()) more = true;
		if (!more &&
		    (all[front] == (python ? '[' : '{') || take(all, at, python ? "<|python_start|>" : "<|python_tag|>", more)))
			return step_call(part, last);
		if (more && !last) return false;
	}
	const size_t at = open_.empty() ? all.npos : all.find(open_);
	if (at == 0) return step_call(part, last);
	if (at != all.npos) {
		show(part, all.substr(0, at));
		buffer_.erase(0, at);
		return true;
	}
	const size_t n = all.size() - (last || open_.empty() ? 0 : begun(all, open_));
	show(part, all.substr(0, n));
	buffer_.erase(0, n);
	return false;
}

// The buffer begins with calls, or with what looks like them.
bool ReplyParser::step_call(Part& part, bool last) {
	const size_t before = part.calls.size();
	size_t end = kNoCall;
	switch (options_.tools) {
	case ToolFormat::Hermes: end = read_hermes(part, last); break;
	case ToolFormat::Mistral: end = read_mistral(part); break;
	case ToolFormat::DeepSeek: end = read_deepseek(part); break;
	case ToolFormat::Llama3: end = read_llama3(part); break;
	case ToolFormat::None:
	case ToolFormat::Harmony: break;
	default: end = read_others(part, last); break;
	}
	if (end >= kNoCall) { // calls are taken all together or not at all
		n_calls_ -= uint32_t(part.calls.size() - before);
		part.calls.resize(before);
	}
	waits_ = end == kMore && !last;
	if (waits_) return false;
	if (end >= kNoCall) { // the marker, or the first character, is text, and so is what follows it
		const size_t n = std::max<size_t>(open_.size(), 1);
		show(part, std::string_view(buffer_).substr(0, n));
		shown_ = true;
		buffer_.erase(0, n);
		return true;
	}
	buffer_.erase(0, end);
	spaces_.clear();
	trim_ = true;
	return true;
}

bool ReplyParser::add_call(Part& part, std::string name, const Json& arguments, std::string id) {
	const auto odd = [](char c) {
		return !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '_' && c != '-' &&
		       c != '.' && c != ':' && c != '/';
	};
	if (name.empty() || std::any_of(name.begin(), name.end(), odd) || !arguments.is_object()) return false;
	if (id.empty()) id = fmt::format("call{:05}", (options_.first_call + n_calls_) % 100'000);
	++n_calls_;
	part.calls.push_back({std::move(id), std::move(name), arguments.dump()});
	return true;
}

// {"name": ..., "arguments" or "parameters": {...}, perhaps "id"}; arguments may be JSON in a string.
bool ReplyParser::add_call(Part& part, const Json& call) {
	if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return false;
	const char* key = call.contains("arguments") ? "arguments" : "parameters";
	Json arguments = call.contains(key) ? call[key] : Json::object();
	if (arguments.is_string()) arguments = parsed(arguments.get<std::string>());
	const bool has_id = call.contains("id") && call["id"].is_string();
	return add_call(part, call["name"], arguments, has_id ? call["id"].get<std::string>() : "");
}

// ---- formats. Each reads one marker's worth from the front of the buffer, and says how long it is.

size_t ReplyParser::read_others(Part& part, bool last) {
	std::vector<FoundCall> found;
	const size_t end = read_calls(form_, buffer_, last, found);
	if (end >= kNoCall) return end;
	return std::ranges::all_of(found, [&](const FoundCall& c) { return add_call(part, c.name, c.arguments, c.id); })
	           ? end
	           : kNoCall;
}

size_t ReplyParser::read_hermes(Part& part, bool last) {
	const std::string_view all = buffer_;
	const size_t from = skip_spaces(all, open_.size());
	const size_t end = json_end(all, from);
	if (end >= kNoCall) return from == all.size() ? kMore : end;
	bool more = false;
	size_t at = skip_spaces(all, end);
	const bool ended = last && at == all.size(); // the model's end-of-turn token stands for the end marker
	if (!take(all, at, "</tool_call>", more) && !ended) return more ? kMore : kNoCall;
	return add_call(part, parsed(all.substr(from, end - from))) ? at : kNoCall;
}

size_t ReplyParser::read_mistral(Part& part) {
	const std::string_view all = buffer_;
	const size_t from = skip_spaces(all, open_.size());
	if (from == all.size()) return kMore;
	if (all[from] == '[') {
		const size_t end = json_end(all, from);
		if (end >= kNoCall) return end;
		const Json calls = parsed(all.substr(from, end - from));
		if (!calls.is_array() || calls.empty()) return kNoCall;
		return std::all_of(calls.begin(), calls.end(), [&](const Json& c) { return add_call(part, c); }) ? end
		                                                                                                 : kNoCall;
	}
	const size_t args = all.find("[ARGS]", from);
	if (all.find('\n', from) < args) return kNoCall; // what stands before them is of one line
	if (args == all.npos) return kMore;
	std::string_view head = all.substr(from, args - from), id;
	if (const size_t at = head.find("[CALL_ID]"); at != head.npos) {
		id = head.substr(at + 9);
		head = head.substr(0, at);
	}
	const size_t json = skip_spaces(all, args + 6);
	const size_t end = json == all.size() ? kMore : json_end(all, json);
	if (end >= kNoCall) return end;
	return add_call(part, std::string(head), parsed(all.substr(json, end - json)), std::string(id)) ? end : kNoCall;
}

size_t ReplyParser::read_deepseek(Part& part) {
	const std::string_view all = buffer_;
	constexpr std::string_view kBegin = "<｜tool▁call▁begin｜>", kSep = "<｜tool▁sep｜>", kEnd = "<｜tool▁call▁end｜>",
	                           kAllEnd = "<｜tool▁calls▁end｜>", kFence = "```json", kFenceEnd = "```";
	size_t at = open_.size();
	bool more = false;
	const auto unless_more = [&] { return more ? kMore : kNoCall; };
	while (true) {
		at = skip_spaces(all, at);
		if (take(all, at, kAllEnd, more)) return at;
		if (more) return kMore;
		if (!take(all, at, kBegin, more)) return unless_more();
		const size_t sep = all.find(kSep, at);
		const size_t line_end = all.find('\n', at);
		if (line_end < sep) return kNoCall; // a name is of one line
		if (sep == all.npos) return kMore;
		std::string_view name = all.substr(at, sep - at); // or the word "function", with the name on the next line
		at = sep + kSep.size();
		if (at == all.size()) return kMore;
		size_t json = skip_spaces(all, at);
		if (json < all.size() && all[json] != '{') {
			const size_t line = all.find('\n', at);
			if (line == all.npos) return kMore;
			name = all.substr(at, line - at);
			json = skip_spaces(all, line);
			if (!take(all, json, kFence, more)) return unless_more();
			json = skip_spaces(all, json);
		}
		if (json == all.size()) return kMore;
		const size_t end = json_end(all, json);
		if (end >= kNoCall) return end;
		at = skip_spaces(all, end);
		if (take(all, at, kFenceEnd, more)) at = skip_spaces(all, at);
		if (more) return kMore;
		if (!take(all, at, kEnd, more)) return unless_more();
		if (!add_call(part, std::string(name), parsed(all.substr(json, end - json)))) return kNoCall;
	}
}

// One object; others may follow with ; or white space between.
size_t ReplyParser::read_llama3(Part& part) {
	const std::string_view all = buffer_;
	bool more = false;
	size_t at = skip_spaces(all, 0);
	if (take(all, at, "<|python_tag|>", more)) at = skip_spaces(all, at);
	if (at == all.size()) return kMore;
	const size_t end = json_end(all, at);
	if (end >= kNoCall) return end;
	return add_call(part, parsed(all.substr(at, end - at))) ? end : kNoCall;
}

} // namespace kvrun
