// A conversation: what was said, as the template and the file of a chat have it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct ChatMessage {
	bool user = false;     // else the model's answer
	std::string text;      // UTF-8
	std::string reasoning; // of an answer; may be empty
};

struct Conversation {
	std::string system; // instructions; empty: none
	std::vector<ChatMessage> messages;
	size_t left_out = 0;  // messages at the front that the model is no longer given
	uint64_t answers = 0; // so far, those taken back among them: each is sampled with a seed of its own

	// The last message is a question that was never answered.
	bool open() const { return !messages.empty() && messages.back().user; }
	// What the model is given, as an array of messages in OpenAI's form.
	std::string messages_json() const;
	// Leaves out the oldest question and what follows it, up to the next question; false: only the last one is left.
	bool leave_out_oldest();
};

struct SavedChat { // content of a chat's file
	Conversation conversation;
	std::string kv; // policy it ran under
};
std::string chat_to_json(const SavedChat&);
// Throws ChatError{KVRUN_EFORMAT} that names `file` and the field.
SavedChat chat_from_json(std::string_view json, const std::string& file);

} // namespace kvrun
