// An unnamed file whose pieces are mapped: host memory that the system may write out to a disk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvrun {

// Disk space is allocated before it is mapped, so a full disk is an error of take() and never a signal.
class OffloadFile {
 public:
	explicit OffloadFile(const std::string& folder); // throws Error{Io} naming the folder
	~OffloadFile();
	OffloadFile(const OffloadFile&) = delete;

	struct Piece {
		uint64_t at = 0; // in the file
		std::span<std::byte> bytes;
	};
	Piece take(size_t bytes); // zeroed; all pieces of a file have one size. Throws Error{Io}
	void give(const Piece&) noexcept;
	// Reads bytes of the file to memory that may be a piece. Throws Error{Io} if the disk cannot read them.
	void read(uint64_t at, std::span<std::byte> to) const;
	// Call before writing bytes of a piece. Throws Error{Io} where the write would raise a signal.
	void touch(std::span<std::byte>) const;

 private:
	[[noreturn]] void fail_io(const std::string& what, int error) const;
	std::string folder_;
	int fd_ = -1;
	uint64_t end_ = 0;           // end of the pieces so far
	std::vector<uint64_t> free_; // offsets of returned pieces
};

} // namespace kvrun
