// Saved chats, by name.
#include "tools/chat/store.h"
#include "engine/core/system/files.h"
#include "tools/text.h"
#include <algorithm>
#include <filesystem>
#include <system_error>

namespace kvrun {
namespace {

constexpr const char *kConversation = ".json", *kCache = ".kv", *kLock = ".lock";
constexpr size_t kLongestChatName = 64;

std::string chats_folder() {
	const std::string state = state_folder();
	if (state.empty())
		fail_status(KVRUN_ENOTFOUND, "there is no folder for chats: set XDG_STATE_HOME or HOME to an absolute path");
	make_private_folder(state + "/chats");
	return state + "/chats/";
}

void check_chat_name(std::string_view name) {
	const auto good = [](char c) {
		return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
		       c == '-';
	};
	if (name.empty() || name.size() > kLongestChatName || name[0] == '.' || !std::ranges::all_of(name, good))
		fail_status(KVRUN_EINVALID, "chat name '{}': use up to {} letters, digits and . _ -, with no dot at the front",
		            name, kLongestChatName);
}

} // namespace

ChatFiles::ChatFiles(const std::string& name)
    : name_((check_chat_name(name), name)), lock_(chats_folder() + name + kLock) {
	if (!lock_.held())
		fail_status(KVRUN_EBUSY, "chat '{}' is open in another kvrun; end that one or choose another name", name);
	// no other process writes this chat: leftover files are of an ended program
	std::error_code ec;
	const std::string leftover = name + kConversation + kUnfinished;
	for (const auto& entry : std::filesystem::directory_iterator(sys::path_of(chats_folder()), ec))
		if (entry.path().filename().string().starts_with(leftover)) std::filesystem::remove(entry.path(), ec);
}

std::string ChatFiles::conversation() const { return chats_folder() + name_ + kConversation; }
std::string ChatFiles::cache() const { return chats_folder() + name_ + kCache; }
void ChatFiles::drop_cache() const {
	std::error_code ec;
	const std::filesystem::path path = sys::path_of(cache());
	if (std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ec))) std::filesystem::remove(path, ec);
}

void ChatFiles::remove() const {
	drop_cache();
	std::error_code ec;
	if (!std::filesystem::remove(sys::path_of(conversation()), ec) && ec)
		fail_status(KVRUN_EIO, "{}: {}", conversation(), ec.message());
	std::filesystem::remove(sys::path_of(chats_folder() + name_ + kLock), ec); // held until the object ends
}

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
