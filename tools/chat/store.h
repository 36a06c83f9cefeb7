// Saved chats, by name.
#pragma once
#include "tools/user_files.h"
#include <string>
#include <vector>

namespace kvrun {

// The files of one chat, locked by this process while the object lives.
class ChatFiles {
 public:
	// name: letters, digits and . _ -; else StatusError{KVRUN_EINVALID}. KVRUN_EBUSY if another kvrun has it open.
	explicit ChatFiles(const std::string& name);
	const std::string& name() const { return name_; }
	std::string conversation() const; // path of the JSON file
	std::string cache() const;        // path of the packed cache
	void drop_cache() const;          // deletes that file, if it is a file
	void remove() const;              // deletes all of them

 private:
	std::string name_;
	FileLock lock_;
};
bool chat_exists(const std::string& name); // throws as ChatFiles() for a bad name
std::vector<std::string> saved_chats();    // names, sorted

} // namespace kvrun
