// Active answers on one engine: sessions by conversation, one batch for all, events for the window. Used by one thread
// only.
#pragma once
#include "tools/chat/text.h"
#include "tools/desktop/protocol.h"
#include <chrono>
#include <functional>
#include <map>

namespace kvrun::desktop {

struct FreeBatch {
	void operator()(kvrun_batch* b) const { kvrun_batch_free(b); }
};
using BatchHandle = std::unique_ptr<kvrun_batch, FreeBatch>;

class Answers {
 public:
	using Tell = std::function<void(Event)>;
	// chat_template: name, or path of a file that ends in .jinja; empty: the model's own. Throws ChatError.
	Answers(EngineHandle, const std::string& chat_template, Tell);
	~Answers(); // ends active answers

	void begin(const Answer&);
	void stop(const std::string& conversation);
	void forget(const std::string& conversation); // drops its cache
	void watch(const Watch&);
	bool busy() const { return !active_.empty(); }
	void step(); // a piece of one prompt and a token of every answer
	kvrun_engine_info info() const;
	bool has_template() const { return has_template_; }
	std::vector<std::string> templates() const; // valid names for chat_template

 private:
	struct Held { // the cache of a conversation
		SessionHandle session;
		std::string kv;
		uint32_t ctx = 0;
		uint64_t used = 0; // number of its last answer
	};
	struct Active;
	kvrun_chat_options chat_options(const std::string* messages) const;
	std::vector<uint32_t> prompt_tokens(const std::string& messages) const;
	Held& session_for(const Answer&);
	bool drop_oldest(const std::string& but); // false: none to drop
	void add_to_batch(Active&, const Answer&);
	void finish(Active&);
	void report_cache(const std::string& conversation, kvrun_session*);

	EngineHandle engine_;
	std::string template_name_, template_text_;
	Tell tell_;
	bool has_template_ = true;
	Watch watch_;
	uint64_t n_answers_ = 0;
	std::map<std::string, Held> held_; // by conversation
	BatchHandle batch_;
	std::vector<std::unique_ptr<Active>> active_;
	std::chrono::steady_clock::time_point reported_{}; // when caches were last reported
};

} // namespace kvrun::desktop
