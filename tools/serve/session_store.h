// Conversations by name, in a folder: each file holds the packed cache and, as its note, the messages.
#pragma once
#include "tools/serve/model.h"
#include <mutex>
#include <optional>
#include <set>

namespace kvrun::serve {

// Limits of a store: if one is exceeded, the conversations that were saved longest ago are deleted.
struct StoreLimit {
	uint64_t bytes = UINT64_MAX, count = UINT64_MAX;
};

class SessionStore {
 public:
	// Creates the folder, accessible to its owner only, if missing. Empty: nothing is kept. The default limit is
	// a tenth of the folder's disk. Throws std::runtime_error naming the folder.
	explicit SessionStore(std::string folder, std::optional<StoreLimit> = {});

	// Reserves a name for one request. Throws ApiError: 400 for an invalid name or if nothing is kept, 409 while
	// another request holds it.
	class Hold {
	 public:
		Hold(SessionStore& store, const std::string& name);
		Hold(const Hold&) = delete;
		~Hold();
		const std::string& name() const { return name_; }
		const std::string& path() const { return path_; }
		uint64_t bytes() const; // size of the file; 0 if there is none
		// Throws ApiError whose message names no folder of this machine; 507 if there is no room.
		void save(kvrun_session*, const std::string& note) const;

	 private:
		SessionStore& store_;
		std::string name_, path_;
	};

	struct Kept {
		std::string name;
		uint64_t bytes = 0;   // size of the file
		int64_t modified = 0; // seconds of the system's clock
		bool pinned = false;  // never deleted because of the limit
		int64_t order = 0;    // sorts by the time of saving
	};
	std::vector<Kept> list() const; // sorted by name
	// Throws ApiError 507 if the conversation could not be kept even after deleting all others that may be deleted.
	void check_room(const Hold&) const;
	void pin(const std::string& name, bool pinned); // throws ApiError 404
	// The note of a conversation: {"messages": [...]}. Throws ApiError 404.
	std::string note(const std::string& name) const;
	void remove(const std::string& name); // throws ApiError 404, 409

 private:
	std::string path_of(const std::string& name) const;
	std::string pin_of(const std::string& name) const; // path of a file that exists while it is pinned
	std::string existing(const std::string& name) const;
	bool held(const std::string& name) const;
	void make_room(const Hold&, uint64_t bytes) const; // deletes conversations to fit its file; throws ApiError 507

	const std::string folder_;
	StoreLimit limit_;
	mutable std::mutex mutex_;
	std::set<std::string> held_;
};

} // namespace kvrun::serve
