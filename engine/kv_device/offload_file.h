// A file without a name, in pieces that are mapped: host memory which the system may write out to a disk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvrun {

// Space on the disk is allocated before it is mapped, so a disk that is full is an error of take() and never a signal.
class OffloadFile {
 public:
	explicit OffloadFile(const std::string& folder); // throws Error{Io} naming it
	~OffloadFile();
	OffloadFile(const OffloadFile&) = delete;

	struct Piece {
		uint64_t at = 0; // in the file
		std::span<std::byte> bytes;
	};
	Piece take(size_t bytes); // zero; pieces of one file have one size. Throws Error{Io}
	void give(const Piece&) noexcept;
	// Bytes of the file, to memory that may be a piece. Throws Error{Io} where the disk does not give them back.
	void read(uint64_t at, std::span<std::byte> to) const;
	// Bytes of a piece are about to be written: throws Error{Io} where that would end in a signal.
	void touch(std::span<std::byte>) const;

 private:
	[[noreturn]] void fail_io(const std::string& what, int error) const;
	std::string folder_;
	int fd_ = -1;
	uint64_t end_ = 0;           // of the pieces so far
	std::vector<uint64_t> free_; // where pieces were
};

} // namespace kvrun
