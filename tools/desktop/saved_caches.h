// Caches of conversations in files: after a restart a conversation goes on without being read again.
#pragma once
#include "tools/api_call.h"
#include <cstdint>
#include <string>

namespace kvrun::desktop {

class SavedCaches {
 public:
	// The folder is created with the first file; empty: nothing is saved.
	explicit SavedCaches(std::string folder) : folder_(std::move(folder)) {}
	static constexpr uint64_t kMostBytes = uint64_t(4) << 30; // of all files; the oldest are deleted
	// Saves the cache of a conversation. It is not an error if that fails: then the conversation is read again.
	void save(const std::string& conversation, kvrun_session*, const std::string& kv, uint32_t ctx) const;
	// The saved cache, if it is one of this engine's model with this policy and context; null: there is none.
	SessionHandle restore(const std::string& conversation, kvrun_engine*, const std::string& kv, uint32_t ctx,
	                      uint32_t checkpoints) const;
	void remove(const std::string& conversation) const;

 private:
	std::string path(const std::string& conversation) const { return folder_ + "/" + conversation + ".kvs"; }
	void delete_oldest() const;
	std::string folder_;
};

} // namespace kvrun::desktop
