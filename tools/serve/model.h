// The model that is served: tokenization, chat prompts, and its name.
#pragma once
#include "tools/answer/prompt.h"
#include "tools/serve/adapters.h"
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace kvrun::serve {

class Model {
 public:
	// chat_template: a name, or a file with a Jinja template; empty for the model's own.
	Model(EngineHandle engine, std::string id, const std::string& chat_template);

	kvrun_engine* engine() const { return residency_.engine(); }
	Residency& residency() const { return residency_; }
	Adapters& adapters() const { return adapters_; }
	const std::string& id() const { return id_; }
	bool can_chat() const { return can_chat_; }  // the model has a chat template
	int64_t created() const { return created_; } // modification time of its file, Unix seconds
	void set_created(int64_t t) { created_ = t; }
	kvrun_engine_info info() const; // if the model is unloaded, the last known values
	// Of these, what never changes; does not wait for work on the device.
	bool encodes() const { return facts_.info.encodes != 0; }
	uint32_t vector_dim() const { return facts_.info.vector_dim; }
	uint32_t n_scores() const { return facts_.info.n_scores; }
	uint32_t ctx_train() const { return facts_.info.ctx_train; }

	// All of these throw ApiError.
	std::vector<uint32_t> tokens(const std::string& text, uint32_t flags) const;
	std::string text(const std::vector<uint32_t>& tokens, uint32_t flags) const;
	// The bytes that a token adds to a text. special: control tokens are written out; otherwise they add no bytes.
	std::string token_text(uint32_t token, bool special) const;
	std::string token_text(std::vector<uint32_t> before, uint32_t token, bool special) const; // behind these
	std::string metadata(const char* key) const; // a value of the model's file as text; empty if it has none
	// The text of the token whose id is a value of the model's file; empty if it has none.
	std::string marker(const char* key) const;
	std::optional<uint32_t> marker_id(const char* key) const;
	std::string template_text() const; // the chat template, or its name if it is a built-in one
	std::string add_sound(std::string_view file, const char* field) const; // its id (serve/media.h)
	size_t sound_tokens(const std::string& id) const;
	void take_media(ChatPrompt&) const; // images and sounds of its messages become the engine's (serve/media.h)
	std::vector<uint32_t> chat_tokens(ChatPrompt) const;
	std::string chat_text(ChatPrompt) const; // the text that chat_tokens() tokenizes
	size_t longest_token() const;            // in bytes, at least 1
	ReplyHandle new_reply(ChatPrompt) const;
	// field: request field that errors name. prompt: may be null. Returns null if the options rule nothing out.
	GrammarHandle new_grammar(kvrun_grammar_options, const ChatPrompt* prompt, const char* field) const;
	kvrun_chat_features features(ChatPrompt) const;

 private:
	ChatPrompt with_template(ChatPrompt) const; // the model's template where the prompt has none
	mutable Residency residency_;
	mutable Adapters adapters_{residency_};
	struct Facts { // copy of the engine's info that owns its strings
		explicit Facts(kvrun_engine*);
		kvrun_engine_info info;
		std::string architecture, name, device_name, device_driver, backend;
	};
	const Facts facts_;
	int64_t created_ = 0;
	bool can_chat_ = true;
	std::string id_;
	ChatPrompt chat_;              // the template
	std::vector<uint32_t> before_; // a token that a text may begin with; empty if there is none
	mutable std::once_flag longest_found_;
	mutable size_t longest_ = 1;
};

} // namespace kvrun::serve
