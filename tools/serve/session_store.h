// Conversations by name, in a folder: each is one file with its packed cache and, as its note, what was said.
#pragma once
#include "tools/serve/model.h"
#include <mutex>
#include <set>

namespace kvrun::serve {

class SessionStore {
 public:
	// The folder is made, for its owner alone, where it is missing. Empty: nothing is kept.
	// Throws std::runtime_error naming it.
	explicit SessionStore(std::string folder);

	// Keeps a name for one request. Throws ApiError: 400 for what is no name or where nothing is kept, 409 while
	// another request has it.
	class Hold {
	 public:
		Hold(SessionStore& store, const std::string& name);
		Hold(const Hold&) = delete;
		~Hold();
		const std::string& name() const { return name_; }
		const std::string& path() const { return path_; }

	 private:
		SessionStore& store_;
		std::string name_, path_;
	};

	struct Kept {
		std::string name;
		uint64_t bytes = 0;   // of the file
		int64_t modified = 0; // seconds of the system's clock
	};
	std::vector<Kept> list() const; // by name
	// The note of a conversation: {"messages": [...]}. Throws ApiError 404.
	std::string note(const std::string& name) const;
	void remove(const std::string& name); // throws ApiError 404, 409

 private:
	std::string path_of(const std::string& name) const;
	std::string existing(const std::string& name) const;

	const std::string folder_;
	mutable std::mutex mutex_;
	std::set<std::string> held_;
};

} // namespace kvrun::serve
