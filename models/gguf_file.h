// The bytes of one GGUF file: a regular file read by position, or memory. Never mapped: a mapping of a file that
// shrinks ends the process with SIGBUS, a read that comes back short is an error.
#pragma once
#include "engine/core/regular_file.h"
#include <optional>

namespace kvrun {

class GgufFile {
 public:
	explicit GgufFile(const std::string& path);
	GgufFile(std::string name, std::span<const std::byte> bytes);

	const std::string& name() const { return name_; } // printable
	uint64_t bytes() const { return bytes_; }         // when it was opened
	void read_at(uint64_t at, std::span<std::byte> dst) const;

 private:
	std::optional<RegularFile> file_; // empty: memory_ has the bytes
	std::string name_;
	uint64_t bytes_ = 0;
	std::span<const std::byte> memory_;
};

} // namespace kvrun
