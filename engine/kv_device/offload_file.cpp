// An unnamed file whose pieces are mapped: host memory that the system may write out to a disk.
#include "engine/kv_device/offload_file.h"
#include "engine/core/error.h"
#include "engine/core/round.h"
#include "engine/core/system/files.h"
#include <cerrno>

namespace kvrun {

OffloadFile::OffloadFile(const std::string& folder) : folder_(folder), fd_(sys::create_unnamed(folder)) {
	if (fd_ < 0) fail_io("no file can be made in this folder", errno);
}

OffloadFile::~OffloadFile() { sys::close_file(fd_); }

void OffloadFile::fail_io(const std::string& what, int error) const {
	fail(Code::Io, "--offload-dir {}: {}: {}; give a folder of another disk, or a larger --host-budget", folder_, what,
	     sys::error_text(error));
}

OffloadFile::Piece OffloadFile::take(size_t bytes) {
	const size_t mapped = align_up(bytes, sys::map_unit());
	free_.reserve(free_.size() + 1); // so that give() cannot throw
	const uint64_t at = free_.empty() ? end_ : free_.back();
	if (const int error = sys::reserve_room(fd_, at, mapped))
		fail_io(fmt::format("no room for {:.1f} MiB more", double(mapped) / (1 << 20)), error);
	void* memory = sys::map_file(fd_, at, mapped);
	if (!memory) fail_io(fmt::format("{} bytes cannot be mapped", mapped), errno);
	free_.empty() ? void(end_ += mapped) : free_.pop_back();
	return {at, {static_cast<std::byte*>(memory), bytes}};
}

void OffloadFile::give(const Piece& p) noexcept {
	const size_t mapped = align_up(p.bytes.size(), sys::map_unit());
	sys::unmap_file(p.bytes.data(), mapped);
	sys::give_room(fd_, p.at, mapped);
	free_.push_back(p.at);
}

void OffloadFile::read(uint64_t at, std::span<std::byte> to) const {
	while (!to.empty()) {
		const ptrdiff_t n = sys::read_at(fd_, at, to);
		if (n <= 0) fail_io("tokens that were stored there cannot be read back", n ? errno : EIO);
		at += uint64_t(n);
		to = to.subspan(size_t(n));
	}
}

void OffloadFile::touch(std::span<std::byte> bytes) const {
	if (!sys::prepare_write(bytes.data(), bytes.size())) fail_io("tokens cannot be stored there", EIO);
}

} // namespace kvrun
