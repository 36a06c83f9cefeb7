// Files of kvrun chat: chats by name, and text that goes with a message.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvrun {

// $XDG_STATE_HOME/kvrun or ~/.local/state/kvrun, made where it is missing; empty: neither variable is set.
std::string state_folder();

// Makes the folder where it is missing, with mode 0700. Throws ChatError where it is a link, or another user's.
void make_private_folder(const std::string& path);

// The whole text of a file of at most `most` bytes. Throws ChatError that names it.
std::string read_text_file(const std::string& path, size_t most);
// The same of a file that kvrun wrote: a link, or another user's file, is refused.
std::string read_private_file(const std::string& path, size_t most);
// Why a file cannot be one that kvrun wrote: "it is a symbolic link"; empty where it can, or is not there.
std::string foreign_file(const std::string& path);
// A new file beside `path`, with mode 0600 and a name that cannot be foreseen, which `name` becomes: its descriptor, or
// -1 and errno. Leftovers are all that begin as PATH.new-.
int open_beside(const std::string& path, std::string& name);
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
