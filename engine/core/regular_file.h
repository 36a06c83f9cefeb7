// A regular file, read by position; anything else (a folder, a FIFO, a device) is refused, and the message names its
// kind.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvrun {

class RegularFile {
 public:
	// Opens for reading without blocking. Devices are not opened, because opening alone can change their state. `want`
	// ends the message if the path is not a regular file: "name a GGUF file". Throws Error{NotFound}, {Format} or {Io}.
	RegularFile(const std::string& path, const char* want);
	RegularFile(const RegularFile&) = delete;
	RegularFile& operator=(const RegularFile&) = delete;
	~RegularFile();

	const std::string& name() const { return name_; } // the path on one line, for messages
	uint64_t bytes() const { return bytes_; }         // size when it was opened
	// Fills dst from byte `at` on. Throws Error{Io} if the file ends before: it has become shorter.
	void read_at(uint64_t at, std::span<std::byte> dst) const;

 private:
	std::string name_;
	int fd_ = -1;
	uint64_t bytes_ = 0;
};

} // namespace kvrun
