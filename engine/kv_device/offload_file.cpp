// An unnamed file whose pieces are mapped: host memory that the system may write out to a disk.
#include "engine/kv_device/offload_file.h"
#include "engine/core/error.h"
#include "engine/core/round.h"
#include <cerrno>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

namespace kvrun {
namespace {

size_t page_bytes() { return size_t(sysconf(_SC_PAGE_SIZE)); }

int open_unnamed(const std::string& folder) {
#ifdef O_TMPFILE
	const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
#endif
	// the file system lacks O_TMPFILE: create a named file (mkostemp replaces the Xs) and remove the name at once
	std::string name = folder + "/kvrun-offload-XXXXXX";
	const int named = ::mkostemp(name.data(), O_CLOEXEC); // mode 0600
	if (named >= 0) ::unlink(name.c_str());
	return named;
}

} // namespace

OffloadFile::OffloadFile(const std::string& folder) : folder_(folder), fd_(open_unnamed(folder)) {
	if (fd_ < 0) fail_io("no file can be made in this folder", errno);
}

OffloadFile::~OffloadFile() { ::close(fd_); }

void OffloadFile::fail_io(const std::string& what, int error) const {
	fail(Code::Io, "--offload-dir {}: {}: {}; give a folder of another disk, or a larger --host-budget", folder_, what,
	     std::generic_category().message(error));
}

OffloadFile::Piece OffloadFile::take(size_t bytes) {
	const size_t mapped = align_up(bytes, page_bytes());
	free_.reserve(free_.size() + 1); // so that give() cannot throw
	const uint64_t at = free_.empty() ? end_ : free_.back();
	int error;
	do error = ::posix_fallocate(fd_, off_t(at), off_t(mapped));
	while (error == EINTR);
	if (error) fail_io(fmt::format("no room for {:.1f} MiB more", double(mapped) / (1 << 20)), error);
	void* memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, off_t(at));
	if (memory == MAP_FAILED) fail_io(fmt::format("{} bytes cannot be mapped", mapped), errno);
	free_.empty() ? void(end_ += mapped) : free_.pop_back();
	return {at, {static_cast<std::byte*>(memory), bytes}};
}

void OffloadFile::give(const Piece& p) noexcept {
	const size_t mapped = align_up(p.bytes.size(), page_bytes());
	::munmap(p.bytes.data(), mapped);
#ifdef FALLOC_FL_PUNCH_HOLE
	(void)!::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(p.at), off_t(mapped));
#endif
	free_.push_back(p.at);
}

void OffloadFile::read(uint64_t at, std::span<std::byte> to) const {
	while (!to.empty()) {
		const ssize_t n = ::pread(fd_, to.data(), to.size(), off_t(at));
		if (n < 0 && errno == EINTR) continue;
		if (n <= 0) fail_io("tokens that were stored there cannot be read back", n ? errno : EIO);
		at += uint64_t(n);
		to = to.subspan(size_t(n));
	}
}

void OffloadFile::touch(std::span<std::byte> bytes) const {
#ifdef MADV_POPULATE_WRITE
	const uintptr_t first = reinterpret_cast<uintptr_t>(bytes.data()) / page_bytes() * page_bytes();
	const uintptr_t end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
	int r;
	do r = ::madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE);
	while (r != 0 && (errno == EINTR || errno == EAGAIN));
	if (r != 0 && errno == EFAULT) fail_io("tokens cannot be stored there", EIO); // other errors: an older system
#endif
}

} // namespace kvrun
