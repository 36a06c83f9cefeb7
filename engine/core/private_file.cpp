// Files that only this user can have written.
#include "engine/core/private_file.h"
#include "engine/core/new_file.h"
#include "engine/core/system/files.h"
#include "engine/core/system/process.h"
#include <cerrno>
#include <fmt/format.h>

namespace kvrun {
namespace {

namespace fs = std::filesystem;

struct Fd {
	int fd;
	explicit Fd(int f) : fd(f) {}
	~Fd() {
		if (fd >= 0) sys::close_file(fd);
	}
	Fd(const Fd&) = delete;
};

bool read_all(int fd, std::span<std::byte> to) {
	while (!to.empty()) {
		const ptrdiff_t n = sys::read_file(fd, {reinterpret_cast<char*>(to.data()), to.size()});
		if (n <= 0) return false;
		to = to.subspan(size_t(n));
	}
	return true;
}

const char* objection(const sys::FileInfo& file, uint64_t most_bytes) {
	if (!file.regular()) return "not a regular file";
	if (!file.own) return "owned by another user";
	if (file.others_write) return "writable by other users";
	return file.bytes > most_bytes ? "too large" : nullptr;
}

void make_folders(const fs::path& folder) {
	sys::FileInfo info;
	if (folder.empty() || sys::stat_file(folder.string(), /*follow_link=*/true, info)) return;
	if (folder.has_relative_path()) make_folders(folder.parent_path());
	sys::make_folder(folder.string());
}

} // namespace

std::vector<std::byte> read_private_file(const fs::path& path, uint64_t most_bytes, std::string& why) {
	why.clear();
	const Fd f(sys::open_file(path.string(), sys::Open::ReadNoLink));
	if (f.fd < 0) {
		if (errno == ELOOP)
			why = "a symbolic link";
		else if (errno != ENOENT && errno != ENOTDIR)
			why = sys::error_text(errno);
		return {};
	}
	sys::FileInfo info;
	if (!sys::stat_file(f.fd, info)) return why = sys::error_text(errno), std::vector<std::byte>{};
	if (const char* o = objection(info, most_bytes)) return why = o, std::vector<std::byte>{};
	std::vector<std::byte> data(size_t(info.bytes));
	if (!read_all(f.fd, data)) return why = "cut off while it was read", std::vector<std::byte>{};
	return data;
}

Written write_private_file(const fs::path& path, std::initializer_list<std::span<const std::byte>> parts,
                           std::string& why) noexcept try {
	make_folders(path.parent_path());
	remove_leftovers(path);
	std::string tmp = fmt::format("{}.{}.XXXXXX", path.string(), sys::process_id());
	const int fd = sys::create_unique(tmp);
	if (fd < 0) return why = sys::error_text(errno), Written::NoPlace;
	bool good = true;
	for (const std::span<const std::byte> part : parts) good = good && sys::write_file(fd, part);
	int error = errno;
	sys::close_file(fd); // Windows gives no new name to a file that is open
	if (good && sys::replace_file(tmp, path.string())) return Written::Yes;
	if (good) error = errno;
	sys::remove_file(tmp);
	why = sys::error_text(error);
	return error == EISDIR || error == EPERM || error == EACCES ? Written::NoPlace : Written::Cut;
} catch (...) { // no memory for a name
	return Written::NoPlace;
}

} // namespace kvrun
