// Opening and reading of regular files.
#include "engine/core/regular_file.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include <cerrno>

namespace kvrun {
namespace {

[[noreturn]] void fail_open(const std::string& name, int error) {
	switch (error) {
	case ENOENT: fail(Code::NotFound, "{}: no such file", name);
	case ENOTDIR:
	case ENAMETOOLONG:
	case ELOOP: fail(Code::NotFound, "{}: {}; check the path", name, sys::error_text(error));
	default: fail(Code::Io, "{}: cannot be opened: {}", name, sys::error_text(error));
	}
}

const char* text_of(sys::FileKind kind) {
	switch (kind) {
	case sys::FileKind::Folder: return "a folder";
	case sys::FileKind::Fifo: return "a FIFO";
	case sys::FileKind::Socket: return "a socket";
	case sys::FileKind::CharacterDevice: return "a character device";
	case sys::FileKind::BlockDevice: return "a block device";
	default: return "something else";
	}
}

void check_regular(const std::string& name, const sys::FileInfo& file, const char* want) {
	if (!file.regular()) fail(Code::Format, "{}: is {}, not a regular file; {}", name, text_of(file.kind), want);
}

} // namespace

RegularFile::RegularFile(const std::string& path, const char* want) : name_(one_line(path)) {
	if (path.empty()) fail(Code::Invalid, "the name of a file is empty; {}", want);
	if (path.find('\0') != path.npos) fail(Code::Invalid, "{}: a file name cannot hold a zero byte", name_);
	sys::FileInfo info;
	if (!sys::stat_file(path, /*follow_link=*/true, info)) fail_open(name_, errno);
	check_regular(name_, info, want);
	// something else can have taken the name since: a FIFO must not make the call wait
	fd_ = sys::open_file(path, sys::Open::Read);
	if (fd_ < 0) fail_open(name_, errno);
	try {
		if (!sys::stat_file(fd_, info)) fail(Code::Io, "{}: {}", name_, sys::error_text(errno));
		check_regular(name_, info, want);
	} catch (...) {
		sys::close_file(fd_); // the destructor of an object that was never finished does not run
		throw;
	}
	bytes_ = info.bytes;
	sys::expect_sequential(fd_);
}

RegularFile::~RegularFile() { sys::close_file(fd_); }

void RegularFile::read_at(uint64_t at, std::span<std::byte> dst) const {
	while (!dst.empty()) {
		const ptrdiff_t n = sys::read_at(fd_, at, dst);
		if (n < 0) fail(Code::Io, "{}: cannot be read at byte {}: {}", name_, at, sys::error_text(errno));
		if (n == 0)
			fail(Code::Io, "{}: ends at byte {} now, had {} bytes when it was opened; do not change a file in use",
			     name_, at, bytes_);
		at += uint64_t(n);
		dst = dst.subspan(size_t(n));
	}
}

} // namespace kvrun
