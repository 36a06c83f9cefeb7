// OpenAI's Responses API: its requests as conversations, answers as its items and events.
#pragma once
#include "tools/serve/parts_answer.h"
#include "tools/serve/requests.h"

namespace kvrun::serve {

struct ResponseRequest {
	ChatRequest chat;
	Json asked; // fields of the response that repeat what was asked for
};
// Throws ApiError 400 that names the field.
ResponseRequest response_request(Json body, const std::string& default_kv);

class ResponseAnswer final : public PartsAnswer {
 public:
	// count: tokens of a text.
	ResponseAnswer(std::shared_ptr<Responder>, const ResponseRequest&, const std::string& model, ReplyHandle,
	               std::function<size_t(const std::string&)> count);

 private:
	void start() override;
	void open(Part) override;
	void add(Part, const std::string& text) override;
	void close(Part) override;
	void call(const Json&) override;
	void finish(const Ended&) override;
	void break_off(const ApiError&) override;
	Response refusal(const ApiError& e) override { return error_response(e); }

	void event(const char* type, Json fields);
	void add_item(Json item);             // which has begun
	void end_item(Json item);             // the last of output_
	Json content(Part, bool whole) const; // the part of the item under way
	Json response(const char* status) const;

	Json response_; // without what is known at its end
	const std::function<size_t(const std::string&)> count_;
	std::string id_, text_, reasoning_; // of the item under way: its id and text; all reasoning
	Json output_ = Json::array();
	uint64_t n_events_ = 0;
};

} // namespace kvrun::serve
