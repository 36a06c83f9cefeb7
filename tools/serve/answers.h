// Answers in the form of OpenAI's API, whole or as a stream of events.
#pragma once
#include "tools/answer/reply.h"
#include "tools/serve/events.h"
#include "tools/serve/requests.h"

namespace kvrun::serve {

// {"policy", "f16_bytes", ...}
Json kv_json(const std::string& policy, const SessionBytes&);
Json timings_json(const Ended&); // by llama.cpp's names
Json kv_json(const Ended&);      // of an answer that ended; includes its conversation's name if it has one

// An answer under way, by the clock.
class Pace {
 public:
	void start(uint32_t prompt, uint32_t cached); // their tokens; again if lack of memory restarts the answer
	void token();
	bool reads() const { return prompt_ > cached_; } // a part of the prompt, itself
	bool answers() const { return tokens_ > 0; }
	Json timings() const;       // so far
	Json progress(double done); // done: share of the tokens that are read; null if it is as at the last call

 private:
	using Clock = std::chrono::steady_clock;
	uint32_t prompt_ = 0, cached_ = 0, tokens_ = 0;
	std::optional<uint32_t> told_;    // tokens of the prompt
	Clock::time_point began_, first_; // when the prompt and the answer began
};

// The limit of tokens or the context ended it.
inline bool was_cut(kvrun_stop_reason r) { return r == KVRUN_STOP_LENGTH || r == KVRUN_STOP_CONTEXT; }
// The token counts in the log line of an answer.
std::string answer_note(const std::string& policy, uint32_t prompt, uint32_t reused, uint32_t answer);
std::string answer_note(const Ended&);

struct ObjectNames { // in OpenAI's API
	const char *id_prefix, *whole, *chunk;
};
constexpr ObjectNames kChatObject{"chatcmpl-", "chat.completion", "chat.completion.chunk"};
constexpr ObjectNames kCompletionObject{"cmpl-", "text_completion", "text_completion"};

// The response to one request: n choices per prompt (OpenAI's n). Sent whole once all have ended, or event by event.
// Used by the generation thread.
class Choices {
 public:
	Choices(std::shared_ptr<Responder>, const GenerationRequest&, const std::string& model, const ObjectNames&,
	        size_t prompts = 1);
	bool gone() const { return failed_ || out_.out().gone(); } // if one choice fails, nobody waits for the others
	bool streams() const { return stream_; }
	bool live_timings() const { return live_timings_; }
	bool shows_progress() const { return stream_ && progress_; }
	void begin(); // a choice has begun
	void reading(double done, double left) { out_.reading(done, left); }
	// Into the stream. more: fields of the event beside the choice.
	void event(const Json& choice, const Json& more = Json::object());
	// choice: the whole choice, or that of the last event. reasoning: tokens of the answer that are reasoning.
	void end(size_t index, const Json& choice, const Ended& how, size_t reasoning = 0);
	void fail(const ApiError&);

 private:
	Json head(bool chunk) const; // id, object, created, model
	void send(const Json& choices, const Json& usage, const Json& more = Json::object());
	Json usage_json() const;
	uint32_t prompt_tokens() const, cached_tokens() const;

	EventStream out_;
	const bool stream_, include_usage_, progress_, live_timings_;
	const std::string model_, id_;
	const ObjectNames names_;
	const int64_t created_;
	std::vector<Json> choices_; // choices that have ended, by index
	size_t left_;               // choices that have not ended
	struct Prompt {
		uint32_t tokens = 0, cached = UINT32_MAX;
	};
	std::vector<Prompt> prompts_;
	uint32_t answer_tokens_ = 0, reasoning_tokens_ = 0;
	bool failed_ = false;
};

// One choice: passes its events on to the client as they happen.
class Answer : public Listener {
 public:
	Answer(std::shared_ptr<Choices> all, size_t index) : stream_(all->streams()), index_(index), all_(std::move(all)) {}
	bool gone() const override { return all_->gone(); }
	void start(uint32_t prompt, uint32_t cached) override { pace_.start(prompt, cached); }
	void begin() override;
	void reading(double done, double left) override;
	void chosen(uint32_t) override { pace_.token(); }
	void token(Json) override;
	void piece(std::string_view text) override { show(text); }
	void end(const Ended&) override;
	void fail(const ApiError& e) override { all_->fail(e); }

 protected:
	virtual void show(std::string_view text) = 0;
	virtual void start_stream() {}
	virtual void show_rest() {}
	// The element of "choices" in a whole answer, and in the last event of a stream.
	virtual Json whole_choice() = 0;
	virtual Json last_choice() = 0;
	virtual Json no_news() const = 0;          // the choice of an event that adds nothing to the answer
	virtual const char* finish_reason() const; // derived from the answer's stop reason
	virtual size_t reasoning_tokens() const { return 0; }
	// "logprobs" of tokens, as Logprobs has them.
	virtual Json logprobs_json(const Json& tokens) = 0;
	Json take_logprobs(); // of the tokens since the last call; null if there are none or not requested
	void event(const Json& choice);

	const bool stream_;
	const size_t index_; // of the choice
	kvrun_stop_reason reason_ = KVRUN_STOP_LENGTH;

 private:
	void show_progress(double done);
	const std::shared_ptr<Choices> all_;
	Pace pace_;
	Json tokens_; // logprobs of tokens that have not been sent yet
	bool begun_ = false;
};

using CountTokens = std::function<size_t(const std::string&)>; // of a text

class ChatAnswer final : public Answer {
 public:
	// reply: null if the text is passed on as the model writes it.
	ChatAnswer(std::shared_ptr<Choices> all, size_t index, ReplyHandle reply, CountTokens count,
	           bool old_functions = false)
	    : Answer(std::move(all), index), raw_(!reply), old_functions_(old_functions), reply_(std::move(reply)),
	      count_(std::move(count)) {}

 private:
	void show(std::string_view text) override;
	void start_stream() override;
	void show_rest() override {
		if (!raw_) take(reply_.finish(was_cut(reason_)));
	}
	Json whole_choice() override;
	Json last_choice() override;
	Json no_news() const override;
	const char* finish_reason() const override;
	size_t reasoning_tokens() const override { return reasoning_.empty() ? 0 : count_(reasoning_); }
	Json logprobs_json(const Json& tokens) override;
	void take(const kvrun_reply_part&);

	const bool raw_, old_functions_;
	Reply reply_;
	const CountTokens count_;
	CallIds ids_{"call_"};
	std::string content_, reasoning_; // the answer so far; no content for a stream
	Json calls_ = Json::array();
};

// The model's answer as a message of a conversation.
Json answer_message(ReplyHandle, std::string_view text);

class CompletionAnswer final : public Answer {
 public:
	// prompt: the beginning of the text, if it is asked for.
	CompletionAnswer(std::shared_ptr<Choices> all, size_t index, std::string prompt = {})
	    : Answer(std::move(all), index), text_(std::move(prompt)) {}

 private:
	void start_stream() override;
	void show(std::string_view text) override;
	Json whole_choice() override;
	Json last_choice() override;
	Json no_news() const override;
	Json logprobs_json(const Json& tokens) override;
	std::string text_;  // the answer so far; for a stream, what it begins with
	size_t offset_ = 0; // characters of the tokens whose logprobs were taken
};

} // namespace kvrun::serve
