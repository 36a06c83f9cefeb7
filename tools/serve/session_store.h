// Conversations by name, in a folder: each is one file with its packed cache and, as its note, what was said.
#pragma once
#include "tools/serve/model.h"
#include <mutex>
#include <optional>
#include <set>

namespace kvrun::serve {

// Most of what a store keeps: where there is more, the conversations that were saved longest ago go.
struct StoreLimit {
	uint64_t bytes = UINT64_MAX, count = UINT64_MAX;
};

class SessionStore {
 public:
	// The folder is made, for its owner alone, where it is missing. Empty: nothing is kept. Without a limit it may have
	// a tenth of its disk. Throws std::runtime_error naming it.
	explicit SessionStore(std::string folder, std::optional<StoreLimit> = {});

	// Keeps a name for one request. Throws ApiError: 400 for what is no name or where nothing is kept, 409 while
	// another request has it.
	class Hold {
	 public:
		Hold(SessionStore& store, const std::string& name);
		Hold(const Hold&) = delete;
		~Hold();
		const std::string& name() const { return name_; }
		const std::string& path() const { return path_; }
		// Throws ApiError, without words about folders of this machine; 507 where there is no room.
		void save(kvrun_session*, const std::string& note) const;

	 private:
		SessionStore& store_;
		std::string name_, path_;
	};

	struct Kept {
		std::string name;
		uint64_t bytes = 0;   // of the file
		int64_t modified = 0; // seconds of the system's clock
		bool pinned = false;  // it stays, whatever the limit says
		int64_t order = 0;    // of when it was saved
	};
	std::vector<Kept> list() const; // by name
	// Throws ApiError 507 where the conversation could not be kept even if all others that may go went.
	void check_room(const Hold&) const;
	void pin(const std::string& name, bool pinned); // throws ApiError 404
	// The note of a conversation: {"messages": [...]}. Throws ApiError 404.
	std::string note(const std::string& name) const;
	void remove(const std::string& name); // throws ApiError 404, 409

 private:
	std::string path_of(const std::string& name) const;
	std::string pin_of(const std::string& name) const; // a file that is there while it is pinned
	std::string existing(const std::string& name) const;
	bool held(const std::string& name) const;
	void make_room(const Hold&, uint64_t bytes) const; // for its file; throws ApiError 507

	const std::string folder_;
	StoreLimit limit_;
	mutable std::mutex mutex_;
	std::set<std::string> held_;
};

} // namespace kvrun::serve
