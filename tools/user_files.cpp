// Files of the user, and those that only kvrun writes: in folders with mode 0700, with mode 0600.
#include "tools/user_files.h"
#include "engine/core/system/files.h"
#include "engine/core/system/machine.h"
#include "engine/core/system/terminal.h"
#include "tools/text.h"
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

namespace kvrun {
namespace {

struct Fd {
	int fd;
	~Fd() {
		if (fd >= 0) sys::close_file(fd);
	}
};

std::string read_all(int fd, const std::string& name, size_t most) {
	std::string text;
	std::vector<char> piece(65536);
	for (;;) {
		const ptrdiff_t n = sys::read_file(fd, piece);
		if (n < 0) fail_file(name);
		if (n == 0) return text;
		text.append(piece.data(), size_t(n));
		if (text.size() > most) fail_status(KVRUN_EINVALID, "{} has more than {} bytes; give it in parts", name, most);
	}
}

// pipe: it may be one, such as <(command) of a shell, which is read to its end.
std::string read_file(const std::string& path, size_t most, sys::Open how, bool pipe = false) {
	const Fd f{sys::open_file(path, how)};
	sys::FileInfo info;
	if (f.fd < 0 || !sys::stat_file(f.fd, info)) fail_file(path);
	if (info.kind == sys::FileKind::Folder) fail_status(KVRUN_EFORMAT, "{} is a folder; name a file", path);
	if (!info.regular() && !(pipe && info.kind == sys::FileKind::Fifo))
		fail_status(KVRUN_EFORMAT, "{} is no regular file", path);
	return read_all(f.fd, path, most);
}

} // namespace

FileLock::FileLock(const std::string& path) : fd_(sys::open_file(path, sys::Open::Create)) {
	if (fd_ < 0) fail_file(path);
	if (!sys::lock_file(fd_)) sys::close_file(std::exchange(fd_, -1));
}

FileLock::~FileLock() {
	if (fd_ >= 0) sys::close_file(fd_);
}

void fail_file(const std::string& path) {
	const kvrun_status s = errno == ENOENT || errno == ENOTDIR ? KVRUN_ENOTFOUND : KVRUN_EIO;
	fail_status(s, "{}: {}", path, std::generic_category().message(errno));
}

std::string absolute_path(const std::string& path) {
	std::error_code ec;
	const std::filesystem::path p = std::filesystem::absolute(sys::path_of(path), ec);
	return ec ? path : p.string();
}

std::string state_folder() {
	std::string folder = sys::state_folder();
	if (folder.empty()) return folder;
	folder += "/kvrun";
	make_private_folder(folder);
	return folder;
}

std::string read_text_file(const std::string& path, size_t most) {
	return read_file(path, most, sys::Open::ReadWaiting, /*pipe=*/true);
}

std::string read_stdin(size_t most) {
	if (sys::is_terminal(0)) std::fputs("reading the text from the terminal; end it with Ctrl-D\n", stderr);
	return read_all(0, "standard input", most);
}

void check_text(std::string_view text, const std::string& name) {
	if (text.find('\0') == text.npos) return;
	fail_status(KVRUN_EFORMAT,
	            "{} is no text: it has zero bytes, as PDF, Word and UTF-16 files do; convert it to UTF-8 text", name);
}

std::string read_private_file(const std::string& path, size_t most) {
	if (const std::string why = foreign_file(path); !why.empty()) fail_status(KVRUN_EFORMAT, "{}: {}", path, why);
	return read_file(path, most, sys::Open::ReadNoLink);
}

std::string foreign_file(const std::string& path) {
	sys::FileInfo info;
	if (!sys::stat_file(path, /*follow_link=*/false, info)) return {};
	if (info.kind == sys::FileKind::Link) return "it is a symbolic link, which kvrun does not follow here";
	if (!info.regular()) return "it is no regular file";
	return info.own ? "" : "it belongs to another user";
}

void make_private_folder(const std::string& path) {
	std::error_code ec;
	std::filesystem::create_directories(sys::path_of(path).parent_path(), ec);
	if (!sys::make_folder(path) && errno != EEXIST)
		fail_status(KVRUN_EIO, "{} cannot be created: {}; XDG_STATE_HOME names another folder", path,
		            ec ? ec.message() : std::generic_category().message(errno));
	switch (sys::claim_folder(path)) {
	case sys::Claim::Ours: return;
	case sys::Claim::NoFolder:
		fail_status(KVRUN_EIO, "{} is no folder, or a symbolic link to one, which kvrun does not follow here", path);
	case sys::Claim::Foreign: fail_status(KVRUN_EIO, "{} belongs to another user; choose another folder", path);
	case sys::Claim::Failed: fail_file(path);
	}
}

int open_beside(const std::string& path, std::string& name) {
	name = path + kUnfinished + "XXXXXX";
	return sys::create_unique(name); // an existing file or link is never opened
}

void write_private_file(const std::string& path, std::string_view content) {
	std::string temporary;
	Fd f{open_beside(path, temporary)};
	if (f.fd < 0) fail_file(path);
	const auto give_up = [&] {
		const int why = errno;
		if (f.fd >= 0) sys::close_file(std::exchange(f.fd, -1));
		sys::remove_file(temporary);
		errno = why;
		fail_file(path);
	};
	if (!sys::write_file(f.fd, std::as_bytes(std::span(content)))) give_up();
	if (!sys::sync_file(f.fd) || !sys::close_file(std::exchange(f.fd, -1))) give_up();
	if (!sys::replace_file(temporary, path)) give_up();
	sys::sync_folder(sys::path_of(path).parent_path().string());
}

} // namespace kvrun
