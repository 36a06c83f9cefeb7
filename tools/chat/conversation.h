// A conversation: its messages, and their JSON for the template and for the chat's file.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

enum class MediaKind : uint8_t { Image, Audio };
struct MediaWords {          // in the order of a message's parts
	const char *part, *list; // the type of a part of a message; the list in a chat's file
	const char *name, *all;  // for messages
};
constexpr MediaWords kMediaWords[] = {{"image", "images", "image", "images"}, {"audio", "audio", "sound", "sounds"}};
inline const MediaWords& words_of(MediaKind k) { return kMediaWords[size_t(k)]; }

struct ChatMedia {
	MediaKind kind = MediaKind::Image;
	std::string path; // of its file
	std::string id;   // of the engine; empty: the file cannot be read, and prompts leave it out
};
struct ChatMessage {
	bool user = false;                 // otherwise the model's answer
	std::string text;                  // UTF-8
	std::string reasoning;             // of an answer; may be empty
	std::vector<ChatMedia> media = {}; // of a question, in front of its text; images first
};

struct Conversation {
	std::string system; // instructions; empty if none
	std::vector<ChatMessage> messages;
	size_t left_out = 0;  // messages at the front that are no longer part of the prompt
	uint64_t answers = 0; // so far, including undone ones: each is sampled with its own seed

	// True if the last message is a question without an answer.
	bool open() const { return !messages.empty() && messages.back().user; }
	// The messages of the prompt, as a JSON array in OpenAI's form.
	std::string messages_json() const;
	// Leaves out the oldest question and what follows it, up to the next question; false if only the last one is left.
	bool leave_out_oldest();
};

struct SavedChat { // content of a chat's file
	Conversation conversation;
	std::string kv; // policy it ran under
};
std::string chat_to_json(const SavedChat&);
// Throws StatusError{KVRUN_EFORMAT} that names `file` and the field.
SavedChat chat_from_json(std::string_view json, const std::string& file);

} // namespace kvrun
