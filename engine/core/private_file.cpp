// Files that only this user can have written.
#include "engine/core/private_file.h"
#include "engine/core/new_file.h"
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace kvrun {
namespace {

namespace fs = std::filesystem;

std::string error_text(int error) { return std::generic_category().message(error); }

struct Fd {
	int fd;
	explicit Fd(int f) : fd(f) {}
	~Fd() {
		if (fd >= 0) ::close(fd);
	}
	Fd(const Fd&) = delete;
};

bool read_all(int fd, std::span<std::byte> to) {
	while (!to.empty()) {
		const ssize_t n = ::read(fd, to.data(), to.size());
		if (n < 0 && errno == EINTR) continue;
		if (n <= 0) return false;
		to = to.subspan(size_t(n));
	}
	return true;
}

bool write_all(int fd, std::span<const std::byte> from) {
	while (!from.empty()) {
		const ssize_t n = ::write(fd, from.data(), from.size());
		if (n < 0 && errno == EINTR) continue;
		if (n == 0) errno = EIO;
		if (n <= 0) return false;
		from = from.subspan(size_t(n));
	}
	return true;
}

const char* objection(const struct stat& st, uint64_t most_bytes) {
	if (!S_ISREG(st.st_mode)) return "not a regular file";
	if (st.st_uid != ::geteuid()) return "owned by another user";
	if (st.st_mode & (S_IWGRP | S_IWOTH)) return "writable by other users";
	return uint64_t(st.st_size) > most_bytes ? "too large" : nullptr;
}

void make_folders(const fs::path& folder) {
	struct stat st {};
	if (folder.empty() || ::stat(folder.c_str(), &st) == 0) return;
	if (folder.has_relative_path()) make_folders(folder.parent_path());
	::mkdir(folder.c_str(), 0700);
}

} // namespace

std::vector<std::byte> read_private_file(const fs::path& path, uint64_t most_bytes, std::string& why) {
	why.clear();
	const Fd f(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
	if (f.fd < 0) {
		if (errno == ELOOP)
			why = "a symbolic link";
		else if (errno != ENOENT && errno != ENOTDIR)
			why = error_text(errno);
		return {};
	}
	struct stat st {};
	if (::fstat(f.fd, &st) != 0) return why = error_text(errno), std::vector<std::byte>{};
	if (const char* o = objection(st, most_bytes)) return why = o, std::vector<std::byte>{};
	std::vector<std::byte> data(size_t(st.st_size));
	if (!read_all(f.fd, data)) return why = "cut off while it was read", std::vector<std::byte>{};
	return data;
}

Written write_private_file(const fs::path& path, std::initializer_list<std::span<const std::byte>> parts,
                           std::string& why) noexcept try {
	make_folders(path.parent_path());
	remove_leftovers(path);
	std::string tmp = fmt::format("{}.{}.XXXXXX", path.string(), ::getpid());
	const Fd f(::mkostemp(tmp.data(), O_CLOEXEC)); // mode 0600
	if (f.fd < 0) return why = error_text(errno), Written::NoPlace;
	bool good = true;
	for (const std::span<const std::byte> part : parts) good = good && write_all(f.fd, part);
	if (good && ::rename(tmp.c_str(), path.c_str()) == 0) return Written::Yes;
	const int error = errno;
	::unlink(tmp.c_str());
	why = error_text(error);
	return error == EISDIR || error == EPERM || error == EACCES ? Written::NoPlace : Written::Cut;
} catch (...) { // no memory for a name
	return Written::NoPlace;
}

} // namespace kvrun
