// Anthropic's Messages API: its requests as conversations, answers as its blocks and events.
#pragma once
#include "tools/serve/parts_answer.h"
#include "tools/serve/requests.h"

namespace kvrun::serve {

struct MessagesRequest {
	ChatRequest chat;
	std::vector<std::string> stops; // stop_sequences
};
// counting: only the prompt is asked about, so that max_tokens may be missing. Throws ApiError 400 that names the
// field.
MessagesRequest messages_request(Json body, const std::string& default_kv, bool counting);

// An error in its form: {"type": "error", "error": {"type", "message", ...}}.
Response messages_error(const ApiError&);

class MessagesAnswer final : public PartsAnswer {
 public:
	MessagesAnswer(std::shared_ptr<Responder>, const MessagesRequest&, const std::string& model, ReplyHandle,
	               uint32_t prompt_tokens);

 private:
	void start() override;
	void open(Part) override;
	void add(Part, const std::string& text) override;
	void close(Part) override;
	void call(const Json&) override;
	void finish(const Ended&) override;
	void break_off(const ApiError&) override;
	Response refusal(const ApiError& e) override { return messages_error(e); }

	void event(const char* type, Json fields);
	void begin_block(Json block);
	void change_block(Json delta);
	void end_block(Json block);
	Json message() const;

	const std::string id_, model_;
	const std::vector<std::string> stops_;
	const uint32_t prompt_tokens_;
	std::string text_; // of the block under way
	Json blocks_ = Json::array();
};

} // namespace kvrun::serve
