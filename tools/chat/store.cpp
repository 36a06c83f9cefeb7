// Files of kvrun chat: saved chats by name, and text files attached to a message.
#include "tools/chat/store.h"
#include "engine/core/system/files.h"
#include "engine/core/system/machine.h"
#include "tools/chat/text.h"
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace kvrun {
namespace {

constexpr const char* kTemporary = ".new-";
constexpr const char *kConversation = ".json", *kCache = ".kv", *kLock = ".lock";
constexpr size_t kLongestName = 64;

struct Fd {
	int fd;
	~Fd() {
		if (fd >= 0) sys::close_file(fd);
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
	std::string folder = sys::state_folder();
	if (folder.empty()) return folder;
	folder += "/kvrun";
	make_private_folder(folder);
	return folder;
}

namespace {

std::string read_file(const std::string& path, size_t most, sys::Open how) {
	const Fd f{sys::open_file(path, how)};
	sys::FileInfo info;
	if (f.fd < 0 || !sys::stat_file(f.fd, info)) fail_file(path);
	if (!info.regular()) fail_chat(KVRUN_EINVALID, "{} is no regular file", path);
	std::string text;
	std::vector<char> piece(65536);
	for (;;) {
		const ptrdiff_t n = sys::read_file(f.fd, piece);
		if (n < 0) fail_file(path);
		if (n == 0) return text;
		text.append(piece.data(), size_t(n));
		if (text.size() > most) fail_chat(KVRUN_EINVALID, "{} has more than {} bytes", path, most);
	}
}

} // namespace

std::string read_text_file(const std::string& path, size_t most) { return read_file(path, most, sys::Open::Read); }

std::string read_private_file(const std::string& path, size_t most) {
	if (const std::string why = foreign_file(path); !why.empty()) fail_chat(KVRUN_EFORMAT, "{}: {}", path, why);
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
	if (!sys::make_folder(path) && errno != EEXIST) fail_file(path);
	switch (sys::claim_folder(path)) {
	case sys::Claim::Ours: return;
	case sys::Claim::NoFolder:
		fail_chat(KVRUN_EIO, "{} is no folder, or a symbolic link to one, which kvrun does not follow here", path);
	case sys::Claim::Foreign: fail_chat(KVRUN_EIO, "{} belongs to another user; choose another folder", path);
	case sys::Claim::Failed: fail_file(path);
	}
}

int open_beside(const std::string& path, std::string& name) {
	name = path + kTemporary + "XXXXXX";
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

ChatFiles::ChatFiles(const std::string& name) : name_(name) {
	check_chat_name(name);
	const std::string path = chats_folder() + name + kLock;
	lock_ = sys::open_file(path, sys::Open::Create);
	if (lock_ < 0) fail_file(path);
	if (sys::lock_file(lock_)) { // no other process writes this chat: leftover files are of an ended program
		std::error_code ec;
		const std::string leftover = name + kConversation + kTemporary;
		for (const auto& entry : std::filesystem::directory_iterator(sys::path_of(chats_folder()), ec))
			if (entry.path().filename().string().starts_with(leftover)) std::filesystem::remove(entry.path(), ec);
		return;
	}
	sys::close_file(std::exchange(lock_, -1));
	fail_chat(KVRUN_EBUSY, "chat '{}' is open in another kvrun; end that one or choose another name", name);
}

ChatFiles::~ChatFiles() {
	if (lock_ >= 0) sys::close_file(lock_);
}

std::string ChatFiles::conversation() const { return chats_folder() + name_ + kConversation; }
std::string ChatFiles::cache() const { return chats_folder() + name_ + kCache; }
bool chat_exists(const std::string& name) {
	check_chat_name(name);
	const std::string path = chats_folder() + name + kConversation;
	sys::FileInfo info;
	return sys::stat_file(path, /*follow_link=*/false, info);
}

std::vector<std::string> saved_chats() {
	std::vector<std::string> out;
	std::error_code ec;
	for (const auto& entry : std::filesystem::directory_iterator(sys::path_of(chats_folder()), ec))
		if (entry.path().extension() == kConversation) out.push_back(entry.path().stem().string());
	std::ranges::sort(out);
	return out;
}

} // namespace kvrun
