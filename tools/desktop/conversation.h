// A conversation as a tree of messages: an edited question or another answer becomes a sibling; nothing is overwritten.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun::desktop {

constexpr int kNone = -1; // no message

struct Message {
	int parent = kNone;                   // previous message
	bool user = false;                    // false: the model's answer
	std::string text;                     // UTF-8
	std::string reasoning;                // of an answer; may be empty
	std::string note;                     // why an answer ended early, and its speed; may be empty
	bool unfinished = false;              // the answer is active, or was when the program ended
	bool cut = false;                     // the answer was stopped, or ended before the model ended it
	std::vector<std::string> images = {}; // and sounds of a question, in front of its text: names (Store::add_image())
};

struct Conversation {
	std::string id; // name of its file
	std::string title;
	std::string kv;                // cache policy
	uint32_t ctx = 0;              // longest sequence in tokens; 0: what fits
	int64_t changed = 0;           // milliseconds since 1970
	uint64_t answers = 0;          // number of answers in all branches: each is sampled with its own seed
	std::vector<Message> messages; // parents before their children
	int last = kNone;              // message that the shown branch ends with

	// Adds a message and shows the branch that ends with it; returns its number.
	int add(int parent, bool user, std::string text, std::vector<std::string> images = {});
	std::vector<int> branch() const;        // messages from the first to `last`
	std::vector<int> siblings(int m) const; // messages with the parent of m, including m, oldest first
	void show(int m);                       // shows the branch through m, continued to the newest message after it
	// JSON array for chat templates; images are parts {"type": "image", "id": path in the folder}, and
	// sounds parts of type "audio".
	std::string template_messages(const std::string& system, int last_message, const std::string& images_folder) const;
	// A copy of the shown branch, without other branches.
	Conversation fork(std::string new_id) const;
};

std::string to_json(const Conversation&);
std::string to_markdown(const Conversation&); // the shown branch
// Throws StatusError{KVRUN_EFORMAT} that names `file` and the fault.
Conversation conversation_from_json(std::string_view json, const std::string& file);

// Whether it is a name that Store::add_image() gives: 16 hexadecimal digits, and png, jpg or webp; wav, flac, ogg or
// mp3 of a sound.
bool is_image_name(std::string_view);
bool is_sound_name(std::string_view); // by its end

// The first words of a text, for a title.
std::string title_of(const std::string& text);

} // namespace kvrun::desktop
