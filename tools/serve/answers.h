// Answers in the form of OpenAI's API, whole or as a stream of events.
#pragma once
#include "tools/serve/requests.h"

namespace kvrun::serve {

// {"policy", "f16_bytes", ...}
Json kv_json(const std::string& policy, const SessionBytes&);

// What becomes of a request, told to the client as it happens.
class Answer : public Listener {
 public:
	Answer(std::shared_ptr<Responder> out, const GenerationRequest& request, const std::string& model,
	       const char* id_prefix, const char* object);
	bool gone() const override { return out_->gone(); }
	void begin() override;
	void token(Json) override;
	void piece(std::string_view text) override { show(text); }
	void end(const Ended&) override;
	void fail(const ApiError&) override;

 protected:
	virtual void show(std::string_view text) = 0;
	virtual void start_stream() {}
	virtual void show_rest() {}
	// What stands in "choices": of the whole answer, and of the last event of a stream.
	virtual Json whole_choice() = 0;
	virtual Json last_choice() = 0;
	virtual const char* finish_reason() const; // of the answer's stop reason
	// "logprobs" of tokens, as Logprobs has them.
	virtual Json logprobs_json(const Json& tokens) = 0;
	Json take_logprobs();    // of the tokens since the last call; null: none, or they are not wanted
	void event(Json choice); // into the stream
	void event(const Json& choices, const Json& usage, const Json& kv);

	const bool stream_;
	kvrun_stop_reason reason_ = KVRUN_STOP_LENGTH;

 private:
	Json head(bool chunk) const; // id, object, created, model
	std::shared_ptr<Responder> out_;
	const bool include_usage_;
	const std::string model_, id_, object_;
	const int64_t created_;
	Json tokens_; // with their logprobs, not sent yet
	bool begun_ = false;
};

class ChatAnswer final : public Answer {
 public:
	ChatAnswer(std::shared_ptr<Responder>, const ChatRequest&, const std::string& model, ReplyHandle);

 private:
	void show(std::string_view text) override;
	void start_stream() override;
	void show_rest() override;
	Json whole_choice() override;
	Json last_choice() override;
	const char* finish_reason() const override;
	Json logprobs_json(const Json& tokens) override;
	void take(const kvrun_reply_part&);

	ReplyHandle reply_;
	std::string content_, reasoning_; // so far, unless it is a stream
	Json calls_ = Json::array();
	size_t n_calls_ = 0;
};

// The message that a model has written, as a conversation has it.
Json answer_message(ReplyHandle, std::string_view text);

class CompletionAnswer final : public Answer {
 public:
	CompletionAnswer(std::shared_ptr<Responder>, const CompletionRequest&, const std::string& model);

 private:
	void show(std::string_view text) override;
	Json whole_choice() override;
	Json last_choice() override;
	Json logprobs_json(const Json& tokens) override;
	std::string text_;  // so far, unless it is a stream
	size_t offset_ = 0; // bytes of the tokens whose logprobs have been taken
};

} // namespace kvrun::serve
