// The bytes of one GGUF file.
#include "models/gguf_file.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <cerrno>
#include <cstring>
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

} // namespace

GgufFile::GgufFile(const std::string& path) : name_(one_line(path)) {
	if (path.empty()) fail(Code::Invalid, "the name of the model file is empty");
	if (path.find('\0') != path.npos) fail(Code::Invalid, "{}: a file name cannot hold a zero byte", name_);
	fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); // opening a FIFO must not wait
	if (fd_ < 0) fail_open(name_, errno);
	struct stat st {};
	const int error = fstat(fd_, &st) == 0 ? 0 : errno;
	if (error != 0 || !S_ISREG(st.st_mode)) {
		::close(fd_); // the destructor of an object that was never finished does not run
		if (error != 0) fail(Code::Io, "{}: {}", name_, error_text(error));
		fail(Code::Format, "{}: {}; name a GGUF file", name_,
		     S_ISDIR(st.st_mode) ? "is a folder" : "is not a regular file");
	}
	bytes_ = uint64_t(st.st_size);
	posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
}

GgufFile::GgufFile(std::string name, std::span<const std::byte> bytes)
    : name_(one_line(name)), bytes_(bytes.size()), memory_(bytes) {}

GgufFile::~GgufFile() {
	if (fd_ >= 0) ::close(fd_);
}

void GgufFile::read_at(uint64_t at, std::span<std::byte> dst) const {
	if (fd_ < 0) {
		KV_ASSERT(at <= memory_.size() && dst.size() <= memory_.size() - at);
		if (!dst.empty()) std::memcpy(dst.data(), memory_.data() + at, dst.size());
		return;
	}
	while (!dst.empty()) {
		const ssize_t n = ::pread(fd_, dst.data(), dst.size(), off_t(at));
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) fail(Code::Io, "{}: cannot be read at byte {}: {}", name_, at, error_text(errno));
		if (n == 0)
			fail(Code::Io, "{}: ends at byte {} now, had {} bytes when it was opened; do not change a model in use",
			     name_, at, bytes_);
		at += uint64_t(n);
		dst = dst.subspan(size_t(n));
	}
}

} // namespace kvrun
