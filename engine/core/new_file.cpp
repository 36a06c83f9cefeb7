// A file that takes its name only when it is whole.
#include "engine/core/new_file.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace kvrun {

namespace fs = std::filesystem;

void remove_leftovers(const fs::path& file) {
	const std::string begin = file.filename().string() + ".";
	std::error_code ec;
	for (fs::directory_iterator it(file.parent_path(), ec), end; !ec && it != end; it.increment(ec)) {
		const std::string name = it->path().filename().string();
		if (!name.starts_with(begin)) continue;
		int pid = 0;
		const char *first = name.data() + begin.size(), *last = name.data() + name.size();
		const auto [rest, error] = std::from_chars(first, last, pid);
		if (error != std::errc() || pid <= 0 || last - rest != 7 || *rest != '.') continue;
		if (::kill(pid, 0) != 0 && errno == ESRCH) ::unlink(it->path().c_str());
	}
}

void NewFile::fail_io(const char* what) const {
	const int error = errno;
	const Code code = error == ENOENT || error == ENOTDIR ? Code::NotFound : Code::Io;
	fail(code, "{}: {}: {}", one_line(path_), what, std::generic_category().message(error));
}

NewFile::NewFile(std::string path) : path_(std::move(path)) {
	struct stat st {};
	if (::stat(path_.c_str(), &st) == 0 && !S_ISREG(st.st_mode))
		fail(Code::Io, "{}: not a regular file; give another name", one_line(path_));
	remove_leftovers(path_);
	std::string name = fmt::format("{}.{}.XXXXXX", path_, ::getpid());
	fd_ = ::mkostemp(name.data(), O_CLOEXEC);
	if (fd_ < 0) fail_io("no file can be made there");
	temporary_ = std::move(name);
}

NewFile::~NewFile() {
	if (fd_ >= 0) ::close(fd_);
	if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void NewFile::write(std::span<const std::byte> from) {
	write_at(bytes_, from);
	bytes_ += from.size();
}

void NewFile::write_at(uint64_t at, std::span<const std::byte> from) {
	while (!from.empty()) {
		const ssize_t n = ::pwrite(fd_, from.data(), from.size(), off_t(at));
		if (n < 0 && errno == EINTR) continue;
		if (n == 0) errno = EIO;
		if (n <= 0) fail_io("writing failed");
		at += uint64_t(n);
		from = from.subspan(size_t(n));
	}
}

void NewFile::commit() {
	if (::fsync(fd_) != 0) fail_io("writing failed");
	const int fd = std::exchange(fd_, -1);
	if (::close(fd) != 0) fail_io("writing failed");
	if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_io("the file cannot be replaced");
	temporary_.clear();
	// so that the name survives a power failure too; a file system that cannot do that has kept the old or the new one
	const std::string folder = fs::path(path_).parent_path().string();
	if (const int dir = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); dir >= 0) {
		::fsync(dir);
		::close(dir);
	}
}

} // namespace kvrun
