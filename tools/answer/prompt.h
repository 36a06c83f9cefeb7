// A conversation, and the chat template that makes it a prompt.
#pragma once
#include "tools/api_call.h"
#include <string>

namespace kvrun {

struct ChatPrompt {                                     // empty: none
	std::string messages = {};                          // JSON array in the form of OpenAI's API
	std::string tools = {}, variables = {};             // JSON array, JSON object
	std::string template_name = {}, template_text = {}; // both empty: the model's own
	bool no_answer = false;                             // the prompt does not end with the beginning of an answer
	bool goes_on = false; // it ends with the text of its last message, which the answer continues

	kvrun_chat_options options() const; // points into this object
};

// Names that template_name can have: those in the model's file, then the built-in ones.
std::vector<std::string> template_names(kvrun_engine*);
// Sets the template that --chat-template gives: a name, else the text of a file; empty: the model's own. A name that
// does not exist is kept for kvrun_chat_get_features(), whose message lists the names. Throws StatusError.
void choose_template(ChatPrompt&, kvrun_engine*, const std::string& given);

// Throws StatusError if `given`, as choose_template() gets it, looks like a path and is no file: before a model is
// read.
void check_template_file(const std::string& given);

kvrun_status chat_features(kvrun_engine*, const ChatPrompt&, kvrun_chat_features& out);
kvrun_status chat_tokens(kvrun_engine*, const ChatPrompt&, std::vector<uint32_t>& out);
kvrun_status chat_text(kvrun_engine*, const ChatPrompt&, std::string& out);
kvrun_status new_reply(kvrun_engine*, const ChatPrompt&, ReplyHandle& out);

} // namespace kvrun
