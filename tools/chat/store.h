// Files of kvrun chat: chats by name, and text that goes with a message.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvrun {

// $XDG_STATE_HOME/kvrun or ~/.local/state/kvrun, made where it is missing; empty: neither variable is set.
std::string state_folder();

// The whole text of a file of at most `most` bytes. Throws ChatError that names it.
std::string read_text_file(const std::string& path, size_t most);
// Replaces the file by one with mode 0600, in one step: it has the new content, or after a failure the old one.
void write_private_file(const std::string& path, std::string_view content);

// The files of one chat, held by this program alone while it lives.
class ChatFiles {
 public:
	// name: letters, digits and . _ -; else ChatError{KVRUN_EINVALID}. KVRUN_EBUSY: another kvrun has it open.
	explicit ChatFiles(const std::string& name);
	ChatFiles(ChatFiles&& from) noexcept : name_(std::move(from.name_)), lock_(std::exchange(from.lock_, -1)) {}
	ChatFiles& operator=(ChatFiles&& from) noexcept {
		std::swap(name_, from.name_), std::swap(lock_, from.lock_);
		return *this;
	}
	~ChatFiles();

	const std::string& name() const { return name_; }
	std::string conversation() const; // path of the JSON file
	std::string cache() const;        // path of the packed cache

 private:
	std::string name_;
	int lock_ = -1; // file descriptor
};
bool chat_exists(const std::string& name); // throws as ChatFiles() for a bad name
std::vector<std::string> saved_chats();    // names, sorted

} // namespace kvrun
