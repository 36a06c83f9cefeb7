// The app's files: one per conversation and one for settings, written by a separate thread so that no frame waits.
#pragma once
#include "tools/desktop/state.h"
#include "tools/user_files.h"
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace kvrun::desktop {

class Store {
 public:
	// Locks the folder, which is created if missing. Throws StatusError{KVRUN_EBUSY} while another program has locked
	// it.
	explicit Store(std::string folder);
	~Store(); // waits until everything is written

	struct Saved {
		std::vector<Conversation> conversations;
		Settings settings;
		std::string problem; // files that could not be read; they are kept
	};
	Saved read(); // damaged settings become settings.json.damaged

	// Replaces the file's content soon, atomically: a crash leaves the old content or the new one.
	void save(const Conversation&);
	void save(const Settings&);
	void remove(const std::string& id);
	// Keeps an image, at once; returns its name, which follows from its content. extension: png, jpg or webp. Throws
	// StatusError.
	std::string add_image(std::string_view content, std::string_view extension);
	std::string images_folder() const { return folder_ + "/images"; }
	std::string caches_folder() const { return folder_ + "/caches"; } // of SavedCaches
	// Deletes images that none of these conversations has; call it if all could be read.
	void keep_images_of(const std::vector<Conversation>&) const;
	void flush();               // waits until everything is written
	std::string take_problem(); // error of writing since the last call; empty: none
	bool take_call() const;     // since the last call, another start of the program has used call_window()

 private:
	std::string path(const std::string& id) const { return folder_ + "/" + id + ".json"; }
	void put(const std::string& file, std::optional<std::string> content);
	void run();

	// Keeps a file under another name; returns the name, empty: it could not be renamed.
	static std::string put_aside(const std::string& file);

	const std::string folder_;
	bool keeps_settings_ = false; // they are damaged and could not be put aside: nothing is saved in their place
	std::optional<FileLock> lock_;
	std::mutex mutex_;
	std::condition_variable wake_, idle_;
	std::map<std::string, std::optional<std::string>> waiting_; // path -> content; nullopt: remove the file
	bool writing_ = false, ending_ = false;
	std::string problem_;
	std::thread thread_;
};

// $XDG_STATE_HOME/kvrun/desktop, or its default in HOME. Throws StatusError if neither variable is set.
std::string default_folder();

// Asks the program that has the folder open to show its window. False: it did not answer within `seconds`.
bool call_window(const std::string& folder, double seconds = 3);

} // namespace kvrun::desktop
