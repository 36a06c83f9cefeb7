// Parses a streamed answer: markers separate reasoning and calls from the text.
#include "models/chat/reply.h"
#include "models/chat/call_grammar.h"
#include "models/chat/json_prefix.h"
#include <algorithm>
#include <cctype>
#include <fmt/format.h>

namespace kvrun {
namespace {

constexpr std::string_view kSpaces = kCallSpaces;
constexpr size_t kLookAgain = 64; // an unfinished call of n bytes is parsed again after n / kLookAgain more bytes

bool odd_name(const std::string& name) {
	return name.empty() || !std::ranges::all_of(name, [](char c) {
		       return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
		              std::string_view("_-.:/").find(c) != std::string_view::npos;
	       });
}

FoundCall call_of_text(const std::string& name, std::string_view text) {
	FoundCall call;
	call.name = name;
	const size_t at = skip_spaces(text, 0);
	if (at == text.size() || text[at] != '{') return call;
	JsonPrefix p = json_prefix(text, at);
	call.arguments = std::move(p.text);
	call.opened = true;
	call.whole = p.whole && skip_spaces(text, p.end) == text.size();
	if (!call.whole) call.rest = text.substr(p.end);
	return call;
}

} // namespace

Json ToolCall::json() const {
	return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

Json ReplyParser::CallDelta::json() const {
	Json j{{"index", index}}, function = Json::object();
	if (!id.empty()) {
		j["id"] = id, j["type"] = "function";
		function["name"] = name;
	}
	function["arguments"] = arguments;
	j["function"] = std::move(function);
	return j;
}

ReplyParser::ReplyParser(Options options)
    : options_(std::move(options)), state_(options_.in_reasoning ? State::Reasoning : State::Content) {
	if (options_.think_begin.empty() || options_.think_end.empty()) state_ = State::Content;
	trim_ = state_ == State::Reasoning;
	// white space in front of a marker is skipped with that of the text
	for (std::string* begin : {&options_.think_begin, &options_.content_begin}) begin->erase(0, skip_spaces(*begin, 0));
	ChatFeatures f;
	f.tool_format = options_.tools, f.tool_begin = options_.tool_begin, f.tool_variant = options_.tool_variant;
	f.shape = options_.shape;
	form_ = {options_.tools,
	         options_.tool_begin,
	         options_.tool_end,
	         options_.tool_variant,
	         std::move(options_.definitions),
	         std::move(options_.shape)};
	opens_ = lone_beginnings(form_);
	if (const std::string marker = call_marker(f); options_.tools != ToolFormat::Harmony && !marker.empty())
		opens_.insert(opens_.begin(), marker);
}

ReplyParser::Part ReplyParser::push(std::string_view text) {
	Part part;
	if (options_.tools == ToolFormat::Harmony) {
		add_pieces(part, harmony_.push(text));
		if (harmony_.in_call())
			if (const FoundCall call = call_of_text(harmony_.recipient(), harmony_.arguments()); told_early(call))
				tell(part, call, /*ended=*/false);
		return part;
	}
	buffer_ += text;
	const bool may_end = text.find_first_of("}])>\n") != text.npos;
	if (waits_ && !may_end && (form_.definitions.is_null() || buffer_.size() < look_at_)) return part;
	look_at_ = buffer_.size() + buffer_.size() / kLookAgain;
	while (step(part, /*last=*/false)) {}
	return part;
}

void ReplyParser::add_pieces(Part& part, std::vector<HarmonyStream::Piece> pieces) {
	for (HarmonyStream::Piece& p : pieces) {
		const State before = state_;
		state_ = p.kind == HarmonyStream::Piece::Kind::Reasoning ? State::Reasoning : State::Content;
		if (state_ != before) spaces_.clear(), trim_ = true;
		if (p.kind != HarmonyStream::Piece::Kind::Call) {
			show(part, p.text);
			continue;
		}
		const FoundCall call = call_of_text(p.name, p.text);
		if ((call.whole && !odd_name(call.name)) || told_early(call))
			tell(part, call, /*ended=*/true);
		else
			show(part, p.text);
		n_ended_ = 0;
	}
}

ReplyParser::Part ReplyParser::finish() {
	Part part;
	const bool unfinished = holds_call();
	if (options_.tools == ToolFormat::Harmony) add_pieces(part, harmony_.finish());
	while (step(part, /*last=*/true)) {}
	show(part, buffer_);
	if (state_ == State::Content) part.content += spaces_;
	if (unfinished && part.calls.empty()) part.unfinished = part.content.size();
	buffer_.clear();
	spaces_.clear();
	return part;
}

bool ReplyParser::holds_call() const {
	if (options_.tools == ToolFormat::None || state_ != State::Content) return false;
	if (options_.tools == ToolFormat::Harmony) return harmony_.holds_call();
	const std::string_view text = std::string_view(buffer_).substr(skip_spaces(buffer_, 0));
	const auto begins = [&](std::string_view marker) {
		return !text.empty() && text.substr(0, marker.size()) == marker.substr(0, text.size());
	};
	if (std::ranges::any_of(opens_, begins)) return true;
	if (!opens_.empty() && !may_lack_tags()) return false;
	if (begins("<|python_tag|>") || begins("<|python_start|>")) return true;
	if (text.empty() || (text[0] != '{' && text[0] != '[')) return false;
	// An answer may also be such a value. A call is an object that begins with its name, or a list of names.
	const std::string_view in = text.substr(1 + skip_spaces(text.substr(1), 0)), name = "\"name\"", type = "\"type\"";
	if (in.empty()) return true;
	if (text[0] == '[') return !may_lack_tags() && std::isalpha(uint8_t(in[0])) != 0;
	return in.substr(0, name.size()) == name.substr(0, in.size()) ||
	       in.substr(0, type.size()) == type.substr(0, in.size());
}

// Whether an object, or a fence around it, may be a call here: read_unmarked().
bool ReplyParser::may_lack_tags() const {
	return options_.tools == ToolFormat::Hermes && form_.definitions.is_array() && !shown_;
}

bool ReplyParser::step(Part& part, bool last) {
	if (buffer_.empty()) return false;
	return state_ == State::Reasoning ? step_reasoning(part, last) : step_content(part, last);
}

void ReplyParser::enter(State s) {
	state_ = s;
	spaces_.clear();
	trim_ = true;
}

// Adds text to the part of the current state, except white space at its end.
void ReplyParser::show(Part& part, std::string_view text) {
	if (ended_ && state_ == State::Content) return;
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
	const bool calls = options_.tools == ToolFormat::QwenXml; // they may end the reasoning
	const size_t call = calls ? buffer_.find(opens_[0]) : buffer_.npos, end = buffer_.find(options_.think_end);
	const bool marked = call != buffer_.npos || end != buffer_.npos;
	const size_t held = last ? 0 : std::max(begun(buffer_, options_.think_end), calls ? begun(buffer_, opens_[0]) : 0);
	const size_t n = marked ? std::min(call, end) : buffer_.size() - held;
	show(part, std::string_view(buffer_).substr(0, n));
	buffer_.erase(0, n);
	if (!marked) return false;
	if (call < end) return step_reasoning_call(part, last);
	buffer_.erase(0, options_.think_end.size());
	enter(State::Content);
	return true;
}

// The buffer begins with the marker of calls. Reasoning may mention it, but a call of a function that is defined, with
// an argument or its end, ends the reasoning, because models leave out the marker for that.
bool ReplyParser::step_reasoning_call(Part& part, bool last) {
	std::vector<FoundCall> found;
	const bool more = read_calls(form_, buffer_, last, found) == kMoreText && !last;
	const bool defined = !found.empty() && told_early(found[0]);
	if (defined && (found[0].whole || found[0].arguments != "{")) {
		enter(State::Content);
		thinks_on_ = true;
		return true;
	}
	if (more && (found.empty() || defined)) return false;
	show(part, opens_[0]);
	buffer_.erase(0, opens_[0].size());
	return true;
}

bool ReplyParser::step_content(Part& part, bool last) {
	const std::string_view all = buffer_;
	// reasoning, and calls without a marker, must come first
	const size_t front = skip_spaces(all, 0);
	const bool at_front =
	    opens_.empty() && (options_.tools == ToolFormat::Llama3 || options_.tools == ToolFormat::Pythonic);
	if (at_front && n_calls_ > 0 && !shown_) // behind a call
		for (const std::string_view behind : {";", "<|python_end|>"}) {
			bool more = false;
			size_t at = front;
			if (take_marker(all, at, behind, more)) {
				buffer_.erase(0, at);
				return true;
			}
			if (more && !last && front < all.size()) return false;
		}
	if (!shown_ && n_calls_ == 0 && !options_.think_begin.empty()) {
		bool more = false;
		size_t at = front;
		if (take_marker(all, at, options_.think_begin, more)) {
			buffer_.erase(0, at);
			enter(State::Reasoning);
			return true;
		}
		if (more && !last) return false;
		at = front;
		if (take_marker(all, at, options_.think_end, more)) { // MiniMax-M3 begins so without reasoning
			buffer_.erase(0, at);
			trim_ = true;
			return true;
		}
		if (more && !last) return false;
	}
	if (!shown_ && n_calls_ == 0 && !options_.content_begin.empty()) {
		bool more = false;
		size_t at = front;
		if (take_marker(all, at, options_.content_begin, more)) {
			buffer_.erase(0, at);
			trim_ = true;
			return true;
		}
		if (more && !last) return false;
	}
	if (may_lack_tags()) {
		if (front == all.size() && !last) return false;
		if (front < all.size() && std::string_view("{`<").find(all[front]) != std::string_view::npos)
			return step_call(part, last);
	}
	if (at_front && !shown_) {
		const bool python = options_.tools == ToolFormat::Pythonic;
		bool more = front == all.size();
		const auto begins = [&](std::string_view marker) {
			bool begun_only = false;
			size_t at = front;
			const bool whole = take_marker(all, at, marker, begun_only);
			more |= begun_only;
			return whole;
		};
		if ((!more && all[front] == (python ? '[' : '{')) || begins("<|python_start|>") ||
		    (!python && begins("<|python_tag|>")))
			return step_call(part, last);
		if (more && !last) return false;
	}
	size_t at = all.npos, held = 0;
	for (const std::string& open : opens_) at = std::min(at, all.find(open)), held = std::max(held, begun(all, open));
	if (at == 0) return step_call(part, last);
	if (const std::string& end = options_.content_end; !end.empty() && !ended_) {
		if (const size_t to = all.find(end); to < at) {
			show(part, all.substr(0, to));
			ended_ = true;
			spaces_.clear();
			buffer_.erase(0, to + end.size());
			return true;
		}
		held = std::max(held, begun(all, end));
	}
	if (thinks_on_) { // the marker is no content
		if (const size_t end = all.find(options_.think_end); end < at) {
			thinks_on_ = false;
			show(part, all.substr(0, end));
			buffer_.erase(0, end + options_.think_end.size());
			trim_ |= !shown_;
			return true;
		}
		held = std::max(held, begun(all, options_.think_end));
	}
	if (at != all.npos) {
		show(part, all.substr(0, at));
		buffer_.erase(0, at);
		return true;
	}
	const size_t n = all.size() - (last ? 0 : held);
	show(part, all.substr(0, n));
	buffer_.erase(0, n);
	return false;
}

bool ReplyParser::told_early(const FoundCall& c) const { return c.opened && defines(form_.definitions, c.name); }

// Reports more of the call after those that have ended.
void ReplyParser::tell(Part& part, const FoundCall& c, bool ended) {
	std::string id = c.id.empty() && !told_early(c) ? c.late_id : c.id;
	if (id.empty()) id = fmt::format("call{:05}", (options_.first_call + n_calls_) % 100'000);
	const std::string arguments = ended ? c.arguments + c.rest : c.arguments;
	if (n_told_ < arguments.size()) {
		const bool first = n_told_ == 0;
		part.deltas.push_back({n_calls_, first ? id : "", first ? c.name : "", arguments.substr(n_told_)});
		n_told_ = arguments.size();
	}
	if (!ended) return;
	part.calls.push_back({std::move(id), c.name, arguments});
	++n_calls_, ++n_ended_;
	n_told_ = 0;
}

// The buffer begins with calls, or with text like calls. They are taken all together or not at all, unless one of them
// was reported early.
bool ReplyParser::step_call(Part& part, bool last) {
	std::vector<FoundCall> found;
	const size_t end = read_calls(form_, buffer_, last, found);
	const auto odd = std::ranges::find_if(found, [](const FoundCall& c) { return odd_name(c.name); });
	const bool early = std::any_of(found.begin(), odd, [&](const FoundCall& c) { return told_early(c); });
	const bool all = end < kNoCall && odd == found.end();
	waits_ = end == kMoreText && !last;
	if (waits_ && !early) return false;
	if (!all && !early) { // not a call: the marker or the first character is text, and so is what follows
		const auto open = std::ranges::find_if(opens_, [&](const std::string& o) { return buffer_.starts_with(o); });
		const size_t n = open == opens_.end() ? 1 : open->size();
		show(part, std::string_view(buffer_).substr(0, n));
		shown_ = true;
		buffer_.erase(0, n);
		return true;
	}
	for (auto c = found.begin() + ptrdiff_t(n_ended_); c < odd && (c->whole || told_early(*c)); ++c)
		tell(part, *c, /*ended=*/c->whole || !waits_);
	if (waits_) return false;
	// Text after a reported call is content. An unfinished rest of the call is not, even if no more text comes.
	const size_t n = all ? end : end == kMoreText ? buffer_.size() : found[std::max<size_t>(n_ended_, 1) - 1].end;
	buffer_.erase(0, n);
	n_ended_ = 0;
	spaces_.clear();
	trim_ = true;
	return true;
}

} // namespace kvrun
