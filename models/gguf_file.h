// The bytes of one GGUF file: a regular file read by position, or memory. Never mapped: a mapping of a file that
// shrinks ends the process with SIGBUS, a read that comes back short is an error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvrun {

class GgufFile {
 public:
	explicit GgufFile(const std::string& path); // refuses what is not a regular file, and does not wait for a FIFO
	GgufFile(std::string name, std::span<const std::byte> bytes);
	GgufFile(const GgufFile&) = delete;
	GgufFile& operator=(const GgufFile&) = delete;
	~GgufFile();

	const std::string& name() const { return name_; } // printable
	uint64_t bytes() const { return bytes_; }         // when it was opened
	void read_at(uint64_t at, std::span<std::byte> dst) const;

 private:
	std::string name_;
	int fd_ = -1;
	uint64_t bytes_ = 0;
	std::span<const std::byte> memory_;
};

} // namespace kvrun
