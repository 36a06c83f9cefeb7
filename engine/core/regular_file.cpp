// Opening and reading of regular files.
#include "engine/core/regular_file.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace kvrun {
namespace {

std::string error_text(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail_open(const std::string& name, int error) {
	switch (error) {
	case ENOENT: fail(Code::NotFound, "{}: no such file", name);
	case ENOTDIR:
	case ENAMETOOLONG:
	case ELOOP: fail(Code::NotFound, "{}: {}; check the path", name, error_text(error));
	default: fail(Code::Io, "{}: cannot be opened: {}", name, error_text(error));
	}
}

const char* kind_of(mode_t mode) {
	switch (mode & S_IFMT) {
	case S_IFDIR: return "a folder";
	case S_IFIFO: return "a FIFO";
	case S_IFSOCK: return "a socket";
	case S_IFCHR: return "a character device";
	case S_IFBLK: return "a block device";
	default: return "something else";
	}
}

void check_regular(const std::string& name, const struct stat& st, const char* want) {
	if (!S_ISREG(st.st_mode)) fail(Code::Format, "{}: is {}, not a regular file; {}", name, kind_of(st.st_mode), want);
}

} // namespace

RegularFile::RegularFile(const std::string& path, const char* want) : name_(one_line(path)) {
	if (path.empty()) fail(Code::Invalid, "the name of a file is empty; {}", want);
	if (path.find('\0') != path.npos) fail(Code::Invalid, "{}: a file name cannot hold a zero byte", name_);
	struct stat st {};
	if (stat(path.c_str(), &st) != 0) fail_open(name_, errno);
	check_regular(name_, st, want);
	// the name may have been replaced since: open() must not block on a FIFO
	fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd_ < 0) fail_open(name_, errno);
	try {
		if (fstat(fd_, &st) != 0) fail(Code::Io, "{}: {}", name_, error_text(errno));
		check_regular(name_, st, want);
	} catch (...) {
		::close(fd_); // the destructor does not run if the constructor throws
		throw;
	}
	bytes_ = uint64_t(st.st_size);
	posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

RegularFile::~RegularFile() { ::close(fd_); }

void RegularFile::read_at(uint64_t at, std::span<std::byte> dst) const {
	while (!dst.empty()) {
		const ssize_t n = ::pread(fd_, dst.data(), dst.size(), off_t(at));
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) fail(Code::Io, "{}: cannot be read at byte {}: {}", name_, at, error_text(errno));
		if (n == 0)
			fail(Code::Io, "{}: ends at byte {} now, had {} bytes when it was opened; do not change a file in use",
			     name_, at, bytes_);
		at += uint64_t(n);
		dst = dst.subspan(size_t(n));
	}
}

} // namespace kvrun
