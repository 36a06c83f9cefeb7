// A regular file, read by position; anything else under the name (a folder, a FIFO, a device) is refused by its kind.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvrun {

class RegularFile {
 public:
	// Opens for reading and never waits; a device is not even opened, which alone can change its state. `want` ends the
	// message where something else has the name: "name a GGUF file". Throws Error{NotFound}, {Format} or {Io}.
	RegularFile(const std::string& path, const char* want);
	RegularFile(const RegularFile&) = delete;
	RegularFile& operator=(const RegularFile&) = delete;
	~RegularFile();

	const std::string& name() const { return name_; } // the path on one line, for messages
	uint64_t bytes() const { return bytes_; }         // when it was opened
	// Fills dst from byte `at` on. Throws Error{Io} where the file ends first: it has become shorter.
	void read_at(uint64_t at, std::span<std::byte> dst) const;

 private:
	std::string name_;
	int fd_ = -1;
	uint64_t bytes_ = 0;
};

} // namespace kvrun
