// Files of kvrun chat: saved chats by name, and text files attached to a message.
#include "tools/chat/store.h"
#include "tools/chat/text.h"
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace kvrun {
namespace {

constexpr const char* kTemporary = ".new-";
constexpr const char *kConversation = ".json", *kCache = ".kv", *kLock = ".lock";
constexpr size_t kLongestName = 64;

struct Fd {
	int fd;
	~Fd() {
		if (fd >= 0) close(fd);
	}
};

[[noreturn]] void fail_file(const std::string& path) {
	const kvrun_status s = errno == ENOENT || errno == ENOTDIR ? KVRUN_ENOTFOUND : KVRUN_EIO;
	fail_chat(s, "{}: {}", path, std::generic_category().message(errno));
}

std::string chats_folder() {
	const std::string state = state_folder();
	if (state.empty())
		fail_chat(KVRUN_ENOTFOUND, "there is no folder for chats: set XDG_STATE_HOME or HOME to an absolute path");
	make_private_folder(state + "/chats");
	return state + "/chats/";
}

void check_chat_name(std::string_view name) {
	const auto good = [](char c) {
		return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
		       c == '-';
	};
	if (name.empty() || name.size() > kLongestName || name[0] == '.' || !std::ranges::all_of(name, good))
		fail_chat(KVRUN_EINVALID, "chat name '{}': use up to {} letters, digits and . _ -, with no dot at the front",
		          name, kLongestName);
}

} // namespace

std::string state_folder() {
	std::string folder;
	if (const char* x = std::getenv("XDG_STATE_HOME"); x && *x == '/')
		folder = std::string(x) + "/kvrun";
	else if (const char* h = std::getenv("HOME"); h && *h == '/')
		folder = std::string(h) + "/.local/state/kvrun";
	if (!folder.empty()) make_private_folder(folder);
	return folder;
}

namespace {

std::string read_file(const std::string& path, size_t most, int flags) {
	const Fd f{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags)}; // a pipe without a writer must not block
	struct stat st;
	if (f.fd < 0 || fstat(f.fd, &st) != 0) fail_file(path);
	if (!S_ISREG(st.st_mode)) fail_chat(KVRUN_EINVALID, "{} is no regular file", path);
	std::string text;
	std::vector<char> piece(65536);
	for (;;) {
		const ssize_t n = read(f.fd, piece.data(), piece.size());
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) fail_file(path);
		if (n == 0) return text;
		text.append(piece.data(), size_t(n));
		if (text.size() > most) fail_chat(KVRUN_EINVALID, "{} has more than {} bytes", path, most);
	}
}

} // namespace

std::string read_text_file(const std::string& path, size_t most) { return read_file(path, most, /*flags=*/0); }

std::string read_private_file(const std::string& path, size_t most) {
	if (const std::string why = foreign_file(path); !why.empty()) fail_chat(KVRUN_EFORMAT, "{}: {}", path, why);
	return read_file(path, most, O_NOFOLLOW);
}

std::string foreign_file(const std::string& path) {
	struct stat st;
	if (lstat(path.c_str(), &st) != 0) return {};
	if (S_ISLNK(st.st_mode)) return "it is a symbolic link, which kvrun does not follow here";
	if (!S_ISREG(st.st_mode)) return "it is no regular file";
	return st.st_uid == geteuid() ? "" : "it belongs to another user";
}

void make_private_folder(const std::string& path) {
	std::error_code ec;
	std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ec);
	if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail_file(path);
	const Fd f{open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)};
	struct stat st;
	if (f.fd < 0 && (errno == ELOOP || errno == ENOTDIR))
		fail_chat(KVRUN_EIO, "{} is no folder, or a symbolic link to one, which kvrun does not follow here", path);
	if (f.fd < 0 || fstat(f.fd, &st) != 0) fail_file(path);
	if (st.st_uid != geteuid()) fail_chat(KVRUN_EIO, "{} belongs to another user; choose another folder", path);
	if ((st.st_mode & 077) && fchmod(f.fd, 0700) != 0) fail_file(path);
}

int open_beside(const std::string& path, std::string& name) {
	name = path + kTemporary + "XXXXXX";
	return mkostemp(name.data(), O_CLOEXEC); // implies O_EXCL: an existing file or link is never opened
}

void write_private_file(const std::string& path, std::string_view content) {
	std::string temporary;
	Fd f{open_beside(path, temporary)};
	if (f.fd < 0) fail_file(path);
	const auto give_up = [&] {
		const int why = errno;
		unlink(temporary.c_str());
		errno = why;
		fail_file(path);
	};
	while (!content.empty()) {
		const ssize_t n = write(f.fd, content.data(), content.size());
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) give_up();
		content.remove_prefix(size_t(n));
	}
	if (fsync(f.fd) != 0 || close(std::exchange(f.fd, -1)) != 0) give_up();
	if (rename(temporary.c_str(), path.c_str()) != 0) give_up();
	const Fd folder{open(std::filesystem::path(path).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
	if (folder.fd >= 0) fsync(folder.fd); // so that the new name also survives a power failure
}

ChatFiles::ChatFiles(const std::string& name) : name_(name) {
	check_chat_name(name);
	const std::string path = chats_folder() + name + kLock;
	lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (lock_ < 0) fail_file(path);
	if (flock(lock_, LOCK_EX | LOCK_NB) ==
	    0) { // no other process writes this chat: leftover files are of an ended program
		std::error_code ec;
		const std::string leftover = name + kConversation + kTemporary;
		for (const auto& entry : std::filesystem::directory_iterator(chats_folder(), ec))
			if (entry.path().filename().string().starts_with(leftover)) std::filesystem::remove(entry.path(), ec);
		return;
	}
	close(std::exchange(lock_, -1));
	fail_chat(KVRUN_EBUSY, "chat '{}' is open in another kvrun; end that one or choose another name", name);
}

ChatFiles::~ChatFiles() {
	if (lock_ >= 0) close(lock_);
}

std::string ChatFiles::conversation() const { return chats_folder() + name_ + kConversation; }
std::string ChatFiles::cache() const { return chats_folder() + name_ + kCache; }
bool chat_exists(const std::string& name) {
	check_chat_name(name);
	const std::string path = chats_folder() + name + kConversation;
	struct stat st;
	return lstat(path.c_str(), &st) == 0;
}

std::vector<std::string> saved_chats() {
	std::vector<std::string> out;
	std::error_code ec;
	for (const auto& entry : std::filesystem::directory_iterator(chats_folder(), ec))
		if (entry.path().extension() == kConversation) out.push_back(entry.path().stem());
	std::ranges::sort(out);
	return out;
}

} // namespace kvrun
