// Files of kvrun chat: saved chats by name, and text files attached to a message.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvrun {

// $XDG_STATE_HOME/kvrun or ~/.local/state/kvrun, created if missing; empty if neither variable is set.
std::string state_folder();

// Creates the folder with mode 0700 if missing. Throws ChatError if it is a symbolic link or belongs to another user.
void make_private_folder(const std::string& path);

// Reads the whole text of a file of at most `most` bytes. Throws ChatError that names the file.
std::string read_text_file(const std::string& path, size_t most);
// The same for a file that kvrun wrote: refuses a symbolic link and another user's file.
std::string read_private_file(const std::string& path, size_t most);
// Why a file cannot have been written by kvrun: "it is a symbolic link"; empty if it can, or if it does not exist.
std::string foreign_file(const std::string& path);
// Creates a file beside `path` with mode 0600 and an unpredictable name, stored in `name`. Returns its descriptor, or
// -1 with errno set. Leftover files all begin with PATH.new-.
int open_beside(const std::string& path, std::string& name);
// Atomically replaces the file by one with mode 0600: on failure it keeps the old content.
void write_private_file(const std::string& path, std::string_view content);

// The files of one chat, locked by this process while the object lives.
class ChatFiles {
 public:
	// name: letters, digits and . _ -; else ChatError{KVRUN_EINVALID}. KVRUN_EBUSY if another kvrun has it open.
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
