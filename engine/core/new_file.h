// A file that gets its name only when it is complete: until then, and after a crash, the name has its old contents.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace kvrun {

// Removes temporary files PATH.PID.XXXXXX that ended processes left beside `path`. A process in another PID namespace
// looks ended: it loses one save.
void remove_leftovers(const std::filesystem::path&);

enum class Readers { // who may read it
	Owner,           // mode 0600: conversations, keys
	ByUmask          // as other programs' files: reports, tuning, models
};

class NewFile {
 public:
	// A temporary file in the folder of `path`. Throws Error{Io, NotFound} naming the path.
	NewFile(std::string path, Readers readers);
	~NewFile(); // without commit() the file is removed
	NewFile(const NewFile&) = delete;

	void write(std::span<const std::byte>);
	void write_at(uint64_t at, std::span<const std::byte>); // overwrites bytes already written
	uint64_t bytes() const { return bytes_; }               // written so far
	void commit(); // syncs to the disk, then renames; nothing may be written afterwards

 private:
	[[noreturn]] void fail_io(const char* what) const;
	std::string path_, temporary_;
	Readers readers_;
	int fd_ = -1;
	uint64_t bytes_ = 0;
};

} // namespace kvrun
