// Active answers on one engine: sessions by conversation, one batch for all, events for the window. Used by one thread
// only.
#pragma once
#include "tools/answer/prompt.h"
#include "tools/desktop/protocol.h"
#include "tools/desktop/saved_caches.h"
#include <chrono>
#include <functional>
#include <map>

namespace kvrun::desktop {

class Answers {
 public:
	using Tell = std::function<void(Event)>;
	// chat_template: name, or path of a file that ends in .jinja; empty: the model's own. Throws StatusError.
	Answers(EngineHandle, const std::string& chat_template, const SavedCaches&, Tell);
	~Answers(); // ends active answers, saves caches

	void begin(const Answer&);
	void stop(const std::string& conversation);
	void forget(const std::string& conversation); // drops its cache
	void watch(const Watch&);
	bool busy() const { return !active_.empty(); }
	bool unsaved() const; // a conversation's cache is not in its file
	void save_one();      // saves the cache of the latest such conversation
	void step();          // a piece of one prompt and a token of every answer
	kvrun_engine* engine() const { return engine_.get(); }
	bool has_template() const { return has_template_; }

 private:
	struct Held { // the cache of a conversation
		SessionHandle session;
		std::string kv;
		uint32_t ctx = 0;
		uint64_t used = 0;  // number of its last answer
		bool saved = false; // its file is what the session is
	};
	struct Active;
	kvrun_session* session_for(const Answer&);
	void make_room(const Answer&, const std::function<kvrun_status()>& call);
	bool drop_oldest(const std::string& but); // false: none to drop
	std::unique_ptr<Active> add_to_batch(const Answer&, uint32_t& n_prompt);
	// The conversation with images and sounds of the engine in place of files.
	std::string add_images(const std::string& messages);
	std::vector<uint32_t> prompt_of(const Answer&, ChatPrompt&);
	void finish(Active&);
	void report_cache(const std::string& conversation, kvrun_session*);
	void save(const std::string& conversation, Held&);

	EngineHandle engine_;
	ChatPrompt chat_; // the template
	const SavedCaches& files_;
	Tell tell_;
	bool has_template_ = true;
	Watch watch_;
	uint64_t n_answers_ = 0;
	std::map<std::string, Held> held_;          // by conversation
	std::map<std::string, std::string> images_; // ids that the engine gave, by file
	BatchHandle batch_;
	std::vector<std::unique_ptr<Active>> active_;
	std::chrono::steady_clock::time_point reported_{}; // when caches were last reported
};

} // namespace kvrun::desktop
