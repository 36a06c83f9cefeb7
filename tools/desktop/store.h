// The app's files: one per conversation and one of settings, written by a thread of its own so that no frame waits.
#pragma once
#include "tools/desktop/state.h"
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace kvrun::desktop {

class Store {
 public:
	// Takes the folder, which is made where it is missing, for this program alone. Throws ChatError{KVRUN_EBUSY} while
	// another one has it.
	explicit Store(std::string folder);
	~Store(); // everything has been written

	struct Saved {
		std::vector<Conversation> conversations;
		Settings settings;
		std::string problem; // files that could not be read, which stay as they are
	};
	Saved read() const;

	// Put in the place of the file's content soon, in one step: a crash leaves the old content or the new one.
	void save(const Conversation&);
	void save(const Settings&);
	void remove(const std::string& id);
	void flush();               // waits until all is written
	std::string take_problem(); // of writing, since the last call; empty: none

 private:
	std::string path(const std::string& id) const { return folder_ + "/" + id + ".json"; }
	void put(const std::string& file, std::optional<std::string> content);
	void run();

	const std::string folder_;
	int lock_ = -1; // file descriptor
	std::mutex mutex_;
	std::condition_variable wake_, idle_;
	std::map<std::string, std::optional<std::string>> waiting_; // path: content; nullopt: to be removed
	bool writing_ = false, ending_ = false;
	std::string problem_;
	std::thread thread_;
};

// $XDG_STATE_HOME/kvrun/desktop or its place in HOME. Throws ChatError where there is neither.
std::string default_folder();

} // namespace kvrun::desktop
