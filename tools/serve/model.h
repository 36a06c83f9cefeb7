// The model that is served: tokens, chat prompts, and what it is called.
#pragma once
#include "tools/serve/residency.h"
#include <mutex>
#include <string>
#include <vector>

namespace kvrun::serve {

struct ChatPrompt {                                     // a conversation to be answered
	std::string messages;                               // JSON array
	std::string tools;                                  // JSON array; empty: none
	std::string variables;                              // JSON object; empty: none
	std::string template_name = {}, template_text = {}; // both empty: the model's own
};

class Model {
 public:
	// chat_template: name, or file with a Jinja template; empty: the model's own.
	Model(EngineHandle engine, std::string id, const std::string& chat_template);

	kvrun_engine* engine() const { return residency_.engine(); }
	Residency& residency() const { return residency_; }
	const std::string& id() const { return id_; }
	bool can_chat() const { return can_chat_; }  // there is a template for conversations
	int64_t created() const { return created_; } // time of its file, in seconds
	void set_created(int64_t t) { created_ = t; }
	kvrun_engine_info info() const; // as it last was, where it is unloaded

	// All of these throw ApiError.
	std::vector<uint32_t> tokens(const std::string& text, uint32_t flags) const;
	std::string text(const std::vector<uint32_t>& tokens, uint32_t flags) const;
	// The bytes that a token adds to a text. special: control tokens are written out; else they add none.
	std::string token_text(uint32_t token, bool special) const;
	std::vector<uint32_t> chat_tokens(ChatPrompt) const;
	std::string chat_text(ChatPrompt) const; // what chat_tokens() makes tokens of
	size_t longest_token() const;            // in bytes, at least 1
	ReplyHandle new_reply(ChatPrompt) const;
	// field: of the request, which is blamed. prompt: may be null. Null: nothing is ruled out.
	kvrun_grammar* new_grammar(kvrun_grammar_options, const ChatPrompt* prompt, const char* field) const;
	kvrun_chat_features features(ChatPrompt) const;

 private:
	template <class F> auto with_options(ChatPrompt&, F f) const;
	mutable Residency residency_;
	struct Facts { // as the engine had them, with texts of their own
		explicit Facts(kvrun_engine*);
		kvrun_engine_info info = KVRUN_ENGINE_INFO_INIT;
		std::string architecture, name, device_name, device_driver, backend;
	};
	const Facts facts_;
	int64_t created_ = 0;
	bool can_chat_ = true;
	std::string id_, template_name_, template_text_;
	std::vector<uint32_t> before_; // a token that a text may begin with; empty: there is none
	mutable std::once_flag longest_found_;
	mutable size_t longest_ = 1;
};

} // namespace kvrun::serve
