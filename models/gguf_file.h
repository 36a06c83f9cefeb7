// The bytes of one GGUF file: a regular file read by position, memory, or a synthetic model. Files are not mapped: if a
// mapped file shrinks, the process gets SIGBUS; a short read is an error.
#pragma once
#include "engine/core/regular_file.h"
#include <memory>
#include <optional>

namespace kvrun {

class SynthFile;

class GgufFile {
 public:
	explicit GgufFile(const std::string& path); // or synth:... (models/synth/shape.h)
	GgufFile(std::string name, std::span<const std::byte> bytes);
	~GgufFile();

	const std::string& name() const { return name_; } // path, made printable
	uint64_t bytes() const { return bytes_; }         // size when it was opened
	void read_at(uint64_t at, std::span<std::byte> dst) const;

 private:
	std::optional<RegularFile> file_; // empty: the bytes are in synth_, or else in memory_
	std::unique_ptr<const SynthFile> synth_;
	std::string name_;
	uint64_t bytes_ = 0;
	std::span<const std::byte> memory_;
};

} // namespace kvrun
