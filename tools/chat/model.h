// The model of a chat: opens it on its device, applies its chat template, and suggests policies that fit its memory.
#pragma once
#include "tools/answer/prompt.h"
#include "tools/args_draft.h"
#include "tools/args_grammar.h"
#include "tools/args_model.h"
#include "tools/text.h"
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvrun {

struct ChatArgs : ModelArgs, SamplingArgs { // options of the command; /set changes the sampling ones
	std::string kv;                         // policy; empty for that of a saved chat, or fp16
	std::string chat_template, system, name;
	std::string template_variables; // JSON
	std::string prompt, file;       // at most one: the first message, or a file that holds it
	bool no_escape = false, single = false;
	MediaArgs media; // for the first message
	bool no_think = false, no_history = false;
	std::string on_full = "stop";   // or drop-oldest
	int64_t predict = -1;           // tokens of an answer; below 0: until the model ends it or the context is full
	std::vector<std::string> stops; // texts that end an answer
	bool ignore_eos = false;
	GrammarArgs form; // constrains answers
	DraftArgs draft;
	std::optional<bool> think; // value passed to the template; nullopt if not passed

	bool drops_oldest() const { return on_full == "drop-oldest"; }
};

class ChatModel {
 public:
	// Loads the model with a progress bar. Throws StatusError: KVRUN_ENOTFOUND lists the names of templates where the
	// model has none and `a` names none.
	explicit ChatModel(const ChatArgs& a);

	kvrun_engine* engine() const { return engine_.get(); }
	const kvrun_chat_features& features() const { return features_; }
	// think: value passed to the template; nullopt if not passed.
	ChatPrompt prompt(std::string messages_json, std::optional<bool> think) const;
	std::vector<uint32_t> tokens(const ChatPrompt&) const;
	// The grammar that answers to a prompt follow; null if none.
	GrammarHandle grammar(const ChatPrompt& p) const { return new_grammar(&p); }
	std::string text(const uint32_t* tokens, size_t count) const; // control tokens written out
	SessionHandle session(const std::string& kv, int64_t ctx, uint64_t seed) const;
	// Commands that make room for `needed` tokens if `kv` with `ctx` does not: "/kv kivi2 4096 (..)"; empty if none.
	std::vector<std::string> larger_contexts(const std::string& kv, uint32_t ctx, size_t needed) const;

 private:
	std::optional<kvrun_plan> plan(const std::string& kv, uint64_t ctx) const;

	GrammarHandle new_grammar(const ChatPrompt*) const; // null: answers to no prompt

	std::string path_, gbnf_, schema_;
	EngineHandle engine_;
	ChatPrompt prompt_; // the template and its variables
	kvrun_chat_features features_ = KVRUN_CHAT_FEATURES_INIT;
};

std::vector<uint32_t> session_tokens(kvrun_session*);

} // namespace kvrun
