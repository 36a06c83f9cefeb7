// An answer that is sent part by part: text, reasoning, tool calls, each with a begin and an end.
#include "tools/serve/parts_answer.h"
#include "tools/serve/answers.h"

namespace kvrun::serve {

PartsAnswer::PartsAnswer(std::shared_ptr<Responder> out, const GenerationRequest& r, ReplyHandle reply,
                         const char* call_prefix)
    : out_(std::move(out), r.ping_s), stream_(r.stream), reply_(std::move(reply)), ids_(call_prefix) {}

void PartsAnswer::begin() {
	if (!stream_ || out_.begun()) return;
	out_.begin();
	start();
}

void PartsAnswer::take(const kvrun_reply_part& part) {
	say(Part::Reasoning, part.reasoning);
	say(Part::Text, part.content);
	const Json ended = Json::parse(part.calls);
	auto next = ended.begin();
	for (Json d : Json::parse(part.call_deltas)) {
		if (d.contains("id")) {
			d["id"] = ids_.of(n_calls_, d["id"]);
			if (in_call_) end_call(*next++);
			close_open();
			space_.clear();
			open_call(d);
			in_call_ = true;
			++n_calls_, ++n_parts_;
		}
		add_call(d["function"]["arguments"]);
	}
	if (next != ended.end()) end_call(*next);
}

void PartsAnswer::end_call(Json call) {
	call["id"] = ids_.of(n_ended_++, call["id"]);
	close_call(call);
	in_call_ = false;
}

void PartsAnswer::say(Part what, const std::string& text) {
	if (text.empty()) return;
	if (open_ != what) {
		if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
			space_ += text;
			return;
		}
		close_open();
		open(open_ = what);
		++n_parts_;
		const std::string before = std::exchange(space_, {});
		if (what == Part::Text && n_calls_ == 0) grow(before);
	}
	grow(text);
}

void PartsAnswer::grow(const std::string& text) {
	text_ += text;
	if (stream_ && !text.empty()) add(open_, text);
}

void PartsAnswer::close_open() {
	if (open_ != Part::None) close(open_, text_);
	open_ = Part::None;
	text_.clear();
}

void PartsAnswer::end(const Ended& e) {
	const bool cut = was_cut(e.result.reason);
	take(reply_.finish(cut));
	if (n_parts_ == 0) { // an empty answer gets one empty text part
		open(open_ = Part::Text);
		grow(space_);
	}
	cut_ = cut;
	close_open();
	out_.out().note(answer_note(e));
	finish(e);
}

void PartsAnswer::event(const char* type, Json fields) {
	if (!stream_) return;
	Json j = event_head(type);
	j.update(fields);
	out_.event(type, j);
}

void PartsAnswer::fail(const ApiError& e) {
	if (std::exchange(failed_, true)) return;
	if (!out_.begun()) return out_.out().respond(refusal(e));
	break_off(e);
	out_.end();
}

} // namespace kvrun::serve
