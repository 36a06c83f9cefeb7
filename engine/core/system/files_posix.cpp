// Files of POSIX systems.
#include "engine/core/system/files.h"
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvrun::sys {
namespace {

FileKind kind_of(mode_t mode) {
	switch (mode & S_IFMT) {
	case S_IFREG: return FileKind::Regular;
	case S_IFDIR: return FileKind::Folder;
	case S_IFLNK: return FileKind::Link;
	case S_IFIFO: return FileKind::Fifo;
	case S_IFSOCK: return FileKind::Socket;
	case S_IFCHR: return FileKind::CharacterDevice;
	case S_IFBLK: return FileKind::BlockDevice;
	default: return FileKind::Other;
	}
}

void fill(const struct stat& st, FileInfo& out) {
	out.kind = kind_of(st.st_mode);
	out.bytes = uint64_t(st.st_size);
	out.changed_ns = int64_t(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec;
	out.own = st.st_uid == ::geteuid();
	out.others_write = st.st_mode & (S_IWGRP | S_IWOTH);
	out.open_to_others = st.st_mode & 077;
}

} // namespace

std::filesystem::path path_of(const std::string& utf8) { return utf8; }

bool stat_file(const std::string& path, bool follow_link, FileInfo& out) {
	struct stat st {};
	if ((follow_link ? ::stat(path.c_str(), &st) : ::lstat(path.c_str(), &st)) != 0) return false;
	fill(st, out);
	return true;
}
bool stat_file(int fd, FileInfo& out) {
	struct stat st {};
	if (::fstat(fd, &st) != 0) return false;
	fill(st, out);
	return true;
}
bool may_write(const std::string& path) { return ::access(path.c_str(), W_OK) == 0; }
bool may_execute(const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }

int open_file(const std::string& path, Open how) {
	constexpr int kQuiet = O_NONBLOCK | O_NOCTTY;
	switch (how) {
	case Open::Read: return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | kQuiet);
	case Open::ReadNoLink: return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | kQuiet | O_NOFOLLOW);
	case Open::ReadWaiting: return ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
	case Open::Create: return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	case Open::CreateShared: return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	}
	return -1;
}
int create_unique(std::string& name, int ending) { return ::mkostemps(name.data(), ending, O_CLOEXEC); }

bool share_file(int fd) {
	const mode_t mask = ::umask(077); // it can only be read by setting one; other threads' files are private meanwhile
	::umask(mask);
	return ::fchmod(fd, 0666 & ~mask) == 0;
}

static int open_unnamed(const std::string& folder) {
#ifdef O_TMPFILE
	const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
#endif
	// the file system lacks O_TMPFILE: create a named file and remove the name at once
	std::string name = folder + "/kvrun-offload-XXXXXX";
	const int named = create_unique(name);
	if (named >= 0) ::unlink(name.c_str());
	return named;
}
int create_unnamed(const std::string& folder, std::string* name) {
	const int fd = open_unnamed(folder);
	if (name) *name = "/proc/self/fd/" + std::to_string(fd);
	return fd;
}
bool close_file(int fd) { return ::close(fd) == 0; }
int copy_descriptor(int fd) { return ::fcntl(fd, F_DUPFD_CLOEXEC, 3); }
bool replace_descriptor(int from, int to) { return ::dup2(from, to) >= 0; }
bool lock_file(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0; }

ptrdiff_t read_file(int fd, std::span<char> to) {
	ssize_t n;
	do n = ::read(fd, to.data(), to.size());
	while (n < 0 && errno == EINTR);
	return n;
}
ptrdiff_t read_at(int fd, uint64_t at, std::span<std::byte> to) {
	ssize_t n;
	do n = ::pread(fd, to.data(), to.size(), off_t(at));
	while (n < 0 && errno == EINTR);
	return n;
}
void expect_sequential(int fd) { ::posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL); }

bool write_file(int fd, std::span<const std::byte> from) {
	while (!from.empty()) {
		const ssize_t n = ::write(fd, from.data(), from.size());
		if (n < 0 && errno == EINTR) continue;
		if (n == 0) errno = EIO;
		if (n <= 0) return false;
		from = from.subspan(size_t(n));
	}
	return true;
}
bool write_at(int fd, uint64_t at, std::span<const std::byte> from) {
	while (!from.empty()) {
		const ssize_t n = ::pwrite(fd, from.data(), from.size(), off_t(at));
		if (n < 0 && errno == EINTR) continue;
		if (n == 0) errno = EIO;
		if (n <= 0) return false;
		at += uint64_t(n);
		from = from.subspan(size_t(n));
	}
	return true;
}
bool sync_file(int fd) { return ::fsync(fd) == 0; }
bool cut_file(int fd, uint64_t bytes) { return ::ftruncate(fd, off_t(bytes)) == 0; }

bool replace_file(const std::string& from, const std::string& to) { return ::rename(from.c_str(), to.c_str()) == 0; }
void sync_folder(const std::string& path) {
	const int fd = ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) return; // a file system that cannot do it has kept the old name or the new one
	::fsync(fd);
	::close(fd);
}
bool remove_file(const std::string& path) { return ::unlink(path.c_str()) == 0; }
bool make_folder(const std::string& path) { return ::mkdir(path.c_str(), 0700) == 0; }

void for_owner_only(const std::function<void()>& make) {
	const mode_t mask = ::umask(0177);
	make();
	::umask(mask);
}

Claim claim_folder(const std::string& path) {
	const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0) return errno == ELOOP || errno == ENOTDIR ? Claim::NoFolder : Claim::Failed;
	FileInfo info;
	Claim claim = Claim::Ours;
	if (!stat_file(fd, info))
		claim = Claim::Failed;
	else if (!info.own)
		claim = Claim::Foreign;
	else if (info.open_to_others && ::fchmod(fd, 0700) != 0)
		claim = Claim::Failed;
	const int error = errno;
	::close(fd);
	errno = error;
	return claim;
}

size_t map_unit() { return size_t(::sysconf(_SC_PAGE_SIZE)); }
int reserve_room(int fd, uint64_t at, uint64_t bytes) {
	int error;
	do error = ::posix_fallocate(fd, off_t(at), off_t(bytes));
	while (error == EINTR);
	return error;
}
void* map_file(int fd, uint64_t at, size_t bytes) {
	void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, off_t(at));
	return memory == MAP_FAILED ? nullptr : memory;
}
void unmap_file(void* memory, size_t bytes) { ::munmap(memory, bytes); }
void give_room([[maybe_unused]] int fd, [[maybe_unused]] uint64_t at, [[maybe_unused]] uint64_t bytes) {
#ifdef FALLOC_FL_PUNCH_HOLE
	(void)!::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(at), off_t(bytes));
#endif
}
bool prepare_write([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#ifdef MADV_POPULATE_WRITE
	const uintptr_t first = reinterpret_cast<uintptr_t>(memory) / map_unit() * map_unit();
	const uintptr_t end = reinterpret_cast<uintptr_t>(memory) + bytes;
	int r;
	do r = ::madvise(reinterpret_cast<void*>(first), end - first, MADV_POPULATE_WRITE);
	while (r != 0 && (errno == EINTR || errno == EAGAIN));
	return r == 0 || errno != EFAULT; // other errors: an older system
#else
	return true;
#endif
}

} // namespace kvrun::sys
