// Conversations by name, in a folder: each is one file with its packed cache and, as its note, what was said.
#include "tools/serve/session_store.h"
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace kvrun::serve {

namespace fs = std::filesystem;
constexpr const char* kEnding = ".kvs";
constexpr size_t kLongestName = 64; // bytes

static bool is_name(const std::string& name) {
	const auto good = [](char c) {
		return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
		       c == '-';
	};
	return !name.empty() && name.size() <= kLongestName && name[0] != '.' && std::ranges::all_of(name, good);
}

SessionStore::SessionStore(std::string folder) : folder_(std::move(folder)) {
	if (folder_.empty()) return;
	std::error_code ec;
	fs::create_directories(fs::path(folder_).parent_path(), ec);
	if (::mkdir(folder_.c_str(), 0700) == 0) return;
	const int why = errno;
	if (why != EEXIST || !fs::is_directory(folder_, ec) || ::access(folder_.c_str(), W_OK) != 0)
		throw std::runtime_error("--sessions " + folder_ + " is no folder that can be written: " +
		                         std::generic_category().message(why == EEXIST ? EACCES : why));
}

std::string SessionStore::path_of(const std::string& name) const {
	if (folder_.empty())
		throw ApiError(400, "this server keeps no conversations; start it with --sessions FOLDER", "session");
	if (!is_name(name))
		throw ApiError(400,
		               "session is not a name: up to " + std::to_string(kLongestName) +
		                   " letters, digits and . _ -, with no dot at the front",
		               "session");
	return folder_ + "/" + name + kEnding;
}

// A link, which could lead anywhere, is no conversation.
std::string SessionStore::existing(const std::string& name) const {
	const std::string path = path_of(name);
	struct stat st;
	if (::lstat(path.c_str(), &st) != 0 || !S_ISREG(st.st_mode))
		throw ApiError(404, "there is no conversation '" + name + "'", "session");
	return path;
}

SessionStore::Hold::Hold(SessionStore& store, const std::string& name)
    : store_(store), name_(name), path_(store.path_of(name)) {
	struct stat st;
	if (::lstat(path_.c_str(), &st) == 0 && !S_ISREG(st.st_mode))
		throw ApiError(400, "the file of conversation '" + name + "' is no regular file", "session");
	std::lock_guard lock(store.mutex_);
	if (!store.held_.insert(name).second)
		throw ApiError(409, "conversation '" + name + "' is being answered; wait for that", "session");
}

SessionStore::Hold::~Hold() {
	std::lock_guard lock(store_.mutex_);
	store_.held_.erase(name_);
}

std::vector<SessionStore::Kept> SessionStore::list() const {
	std::vector<Kept> out;
	if (folder_.empty()) return out;
	std::error_code ec;
	for (const auto& entry : fs::directory_iterator(folder_, ec)) {
		struct stat st;
		const std::string name = entry.path().stem();
		if (entry.path().extension() != kEnding || !is_name(name)) continue;
		if (::lstat(entry.path().c_str(), &st) == 0 && S_ISREG(st.st_mode))
			out.push_back({name, uint64_t(st.st_size), int64_t(st.st_mtime)});
	}
	std::ranges::sort(out, {}, &Kept::name);
	return out;
}

std::string SessionStore::note(const std::string& name) const {
	const std::string path = existing(name);
	std::vector<char> note;
	check(fill_vector(
	          note, 4096,
	          [&](char* to, size_t room, size_t* n) { return kvrun_session_read_note(path.c_str(), to, room, n); }),
	      "session");
	return {note.begin(), note.end()};
}

void SessionStore::remove(const std::string& name) {
	existing(name);
	const Hold hold(*this, name);
	::unlink(hold.path().c_str());
}

} // namespace kvrun::serve
