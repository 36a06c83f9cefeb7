// Files of the user, and those that only kvrun writes: in folders with mode 0700, with mode 0600.
#pragma once
#include <string>
#include <string_view>
#include <utility>

namespace kvrun {

// $XDG_STATE_HOME/kvrun or ~/.local/state/kvrun, created if missing; empty if neither variable is set.
std::string state_folder();

// The path without reference to the current folder; unchanged if that folder is gone.
std::string absolute_path(const std::string& path);

// Creates the folder with mode 0700 if missing. Throws StatusError if it is a symbolic link or belongs to another user.
void make_private_folder(const std::string& path);

// Reads the whole text of a file of at most `most` bytes. Throws StatusError that names the file.
std::string read_text_file(const std::string& path, size_t most);
// All of standard input, byte for byte. The same errors.
std::string read_stdin(size_t most);
// Throws StatusError if what was read from `name` is no text: it would be read as one, byte for byte.
void check_text(std::string_view text, const std::string& name);
// As read_text_file(), for a file that kvrun wrote: refuses a symbolic link and another user's file.
std::string read_private_file(const std::string& path, size_t most);
// Why a file cannot have been written by kvrun: "it is a symbolic link"; empty if it can, or if it does not exist.
std::string foreign_file(const std::string& path);
constexpr const char* kUnfinished = ".new-"; // in names of files that open_beside() creates
// Creates a file beside `path` with mode 0600 and an unpredictable name, PATH.new-XXXXXX, stored in `name`. Returns its
// descriptor, or -1 with errno set.
int open_beside(const std::string& path, std::string& name);
// Atomically replaces the file by one with mode 0600: on failure it keeps the old content.
void write_private_file(const std::string& path, std::string_view content);

// A lock on files, by a file of its own; released when the object or the process ends.
class FileLock {
 public:
	explicit FileLock(const std::string& path); // throws StatusError if the file cannot be created
	FileLock(FileLock&& from) noexcept : fd_(std::exchange(from.fd_, -1)) {}
	FileLock& operator=(FileLock&& from) noexcept {
		std::swap(fd_, from.fd_);
		return *this;
	}
	~FileLock();
	bool held() const { return fd_ >= 0; } // false if another process holds it

 private:
	int fd_;
};

// Throws StatusError with the path and the message of errno.
[[noreturn]] void fail_file(const std::string& path);

} // namespace kvrun
