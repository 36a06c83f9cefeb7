// A file that takes its name only when it is whole: until then, and after a crash, the name has what it had before.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace kvrun {

// Removes temporary files that processes which have ended left beside `path`. They are called PATH.PID.XXXXXX. A
// process of another PID namespace looks ended; it loses one save.
void remove_leftovers(const std::filesystem::path&);

class NewFile {
 public:
	// A temporary file, mode 0600, in the folder of `path`. Throws Error{Io, NotFound} naming the path.
	explicit NewFile(std::string path);
	~NewFile(); // without commit() nothing is left
	NewFile(const NewFile&) = delete;

	void write(std::span<const std::byte>);
	void write_at(uint64_t at, std::span<const std::byte>); // over what has been written
	uint64_t bytes() const { return bytes_; }               // written so far
	void commit(); // to the disk, then under its name; nothing may be written after it

 private:
	[[noreturn]] void fail_io(const char* what) const;
	std::string path_, temporary_;
	int fd_ = -1;
	uint64_t bytes_ = 0;
};

} // namespace kvrun
