// An answer that is told part by part: text, reasoning, calls of tools, each of them begun and ended.
#pragma once
#include "tools/serve/events.h"
#include "tools/serve/requests.h"

namespace kvrun::serve {

class PartsAnswer : public Listener {
 public:
	PartsAnswer(std::shared_ptr<Responder> out, const GenerationRequest&, ReplyHandle);
	bool gone() const override { return failed_ || out_.out().gone(); }
	void begin() override;
	void reading(double done, double left) override { out_.reading(done, left); }
	void piece(std::string_view text) override;
	void end(const Ended&) override;
	void fail(const ApiError&) override;

 protected:
	enum class Part : uint8_t { None, Text, Reasoning };
	virtual void start() = 0; // of the stream
	virtual void open(Part) = 0;
	virtual void add(Part, const std::string& text) = 0;   // of a stream
	virtual void close(Part, const std::string& text) = 0; // all of it
	virtual void open_call(const Json& call) = 0;          // as in OpenAI's chats, its arguments not yet
	virtual void add_call(const std::string& arguments) = 0;
	virtual void close_call(const Json& call) = 0;
	virtual void finish(const Ended&) = 0;
	virtual void break_off(const ApiError&) = 0;   // a stream that has begun
	virtual Response refusal(const ApiError&) = 0; // where nothing has been sent
	virtual Json event_head(const char* type) { return {{"type", type}}; }
	void event(const char* type, Json fields); // nothing where the answer is no stream
	bool calls() const { return n_calls_ > 0; }

	EventStream out_;
	const bool stream_;

 private:
	void take(const kvrun_reply_part&);
	void say(Part, const std::string& text);
	void grow(const std::string& text); // of what is open
	void end_call(const Json& call);
	void close_open();
	ReplyHandle reply_;
	Part open_ = Part::None;
	std::string text_;  // of what is open
	std::string space_; // that has come where nothing is open: before a call it says nothing
	size_t n_calls_ = 0, n_parts_ = 0;
	bool in_call_ = false;
	bool failed_ = false;
};

} // namespace kvrun::serve
