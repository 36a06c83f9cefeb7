// An answer that is sent part by part: text, reasoning, tool calls, each with a begin and an end.
#pragma once
#include "tools/answer/reply.h"
#include "tools/serve/events.h"
#include "tools/serve/requests.h"

namespace kvrun::serve {

class PartsAnswer : public Listener {
 public:
	// call_prefix: of the ids of calls.
	PartsAnswer(std::shared_ptr<Responder> out, const GenerationRequest&, ReplyHandle, const char* call_prefix);
	bool gone() const override { return failed_ || out_.out().gone(); }
	void begin() override;
	void reading(double done, double left) override { out_.reading(done, left); }
	void piece(std::string_view text) override { take(reply_.push(text)); }
	void end(const Ended&) override;
	void fail(const ApiError&) override;

 protected:
	enum class Part : uint8_t { None, Text, Reasoning };
	virtual void start() = 0; // begins the stream
	virtual void open(Part) = 0;
	virtual void add(Part, const std::string& text) = 0;   // only called for a stream
	virtual void close(Part, const std::string& text) = 0; // text: the whole part
	virtual void open_call(const Json& call) = 0;          // in the form of OpenAI's chats, without arguments
	virtual void add_call(const std::string& arguments) = 0;
	virtual void close_call(const Json& call) = 0;
	virtual void finish(const Ended&) = 0;
	virtual void break_off(const ApiError&) = 0;   // ends a stream that has begun
	virtual Response refusal(const ApiError&) = 0; // used if nothing was sent yet
	virtual Json event_head(const char* type) { return {{"type", type}}; }
	void event(const char* type, Json fields); // does nothing if the answer is not a stream
	bool calls() const { return n_calls_ > 0; }
	bool cut() const { return cut_; } // the part that is closed was cut off by the limit of tokens

	EventStream out_;
	const bool stream_;

 private:
	void take(const kvrun_reply_part&);
	void say(Part, const std::string& text);
	void grow(const std::string& text); // appends to the open part
	void end_call(Json call);
	void close_open();
	Reply reply_;
	Part open_ = Part::None;
	std::string text_;  // text of the open part
	std::string space_; // white space received between parts; dropped before a tool call
	CallIds ids_;
	size_t n_calls_ = 0, n_ended_ = 0, n_parts_ = 0; // calls begun, calls ended, parts
	bool in_call_ = false, cut_ = false;
	bool failed_ = false;
};

} // namespace kvrun::serve
