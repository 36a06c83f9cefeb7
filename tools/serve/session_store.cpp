// Conversations by name, in a folder: each file holds the packed cache and, as its note, the messages.
#include "tools/serve/session_store.h"
#include "engine/core/system/files.h"
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace kvrun::serve {

namespace fs = std::filesystem;
constexpr const char *kEnding = ".kvs", *kPin = ".pin";
constexpr uint64_t kFileBytes = 64 << 10; // size of a session's file without cache and note
constexpr size_t kLongestName = 64;       // bytes

static bool is_name(const std::string& name) {
	const auto good = [](char c) {
		return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
		       c == '-';
	};
	return !name.empty() && name.size() <= kLongestName && name[0] != '.' && std::ranges::all_of(name, good);
}

SessionStore::SessionStore(std::string folder, std::optional<StoreLimit> limit)
    : folder_(std::move(folder)), limit_(limit.value_or(StoreLimit())) {
	if (folder_.empty()) return;
	std::error_code ec;
	fs::create_directories(sys::path_of(folder_).parent_path(), ec);
	const int why = sys::make_folder(folder_) ? 0 : errno;
	const fs::space_info disk = fs::space(sys::path_of(folder_), ec);
	if (!limit && !ec) limit_.bytes = disk.capacity / 10;
	if (why == 0) return;
	if (why != EEXIST || !fs::is_directory(sys::path_of(folder_), ec) || !sys::may_write(folder_))
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

std::string SessionStore::pin_of(const std::string& name) const { return folder_ + "/" + name + kPin; }

// A library message about a conversation's file, with the folder removed.
static std::string without_folder(const std::string& message, const std::string& name) {
	const size_t at = message.find(name + kEnding);
	if (at == std::string::npos) return message.find('/') == std::string::npos ? message : "its file cannot be used";
	return "conversation '" + name + "'" + message.substr(at + name.size() + std::string_view(kEnding).size());
}

// A symbolic link is refused, because it could lead anywhere.
std::string SessionStore::existing(const std::string& name) const {
	const std::string path = path_of(name);
	sys::FileInfo info;
	if (!sys::stat_file(path, /*follow_link=*/false, info) || !info.regular())
		throw ApiError(404, "there is no conversation '" + name + "'", "session");
	return path;
}

SessionStore::Hold::Hold(SessionStore& store, const std::string& name)
    : store_(store), name_(name), path_(store.path_of(name)) {
	sys::FileInfo info;
	if (sys::stat_file(path_, /*follow_link=*/false, info) && !info.regular())
		throw ApiError(400, "the file of conversation '" + name + "' is no regular file", "session");
	std::lock_guard lock(store.mutex_);
	if (!store.held_.insert(name).second)
		throw ApiError(409, "conversation '" + name + "' is being answered; wait for that", "session");
}

uint64_t SessionStore::Hold::bytes() const {
	sys::FileInfo info;
	return sys::stat_file(path_, /*follow_link=*/false, info) ? info.bytes : 0;
}

void SessionStore::Hold::save(kvrun_session* session, const std::string& note) const {
	kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
	check(kvrun_session_get_info(session, &i));
	const uint64_t cache = i.f16_bytes + i.code_bytes + i.param_bytes + i.overhead_bytes;
	store_.make_room(*this, cache + note.size() + kFileBytes);
	if (kvrun_session_save(session, path_.c_str(), note.data(), note.size()) != KVRUN_OK)
		throw ApiError(500, without_folder(kvrun_last_error(), name_));
	sys::FileInfo info;
	if (!sys::stat_file(path_, /*follow_link=*/false, info)) return;
	try {
		store_.make_room(*this, info.bytes);
	} catch (...) {
		sys::remove_file(path_);
		throw;
	}
}

SessionStore::Hold::~Hold() {
	std::lock_guard lock(store_.mutex_);
	store_.held_.erase(name_);
}

std::vector<SessionStore::Kept> SessionStore::list() const {
	std::vector<Kept> out;
	if (folder_.empty()) return out;
	std::error_code ec;
	for (const auto& entry : fs::directory_iterator(sys::path_of(folder_), ec)) {
		sys::FileInfo info, pin;
		const std::string name = entry.path().stem().string();
		if (entry.path().extension() != kEnding || !is_name(name)) continue;
		if (!sys::stat_file(entry.path().string(), /*follow_link=*/false, info) || !info.regular()) continue;
		const bool pinned = sys::stat_file(pin_of(name), /*follow_link=*/false, pin) && pin.regular();
		out.push_back({name, info.bytes, info.changed_ns / 1'000'000'000, pinned, info.changed_ns});
	}
	std::ranges::sort(out, {}, &Kept::name);
	return out;
}

bool SessionStore::held(const std::string& name) const {
	std::lock_guard lock(mutex_);
	return held_.contains(name);
}

void SessionStore::check_room(const Hold& hold) const {
	StoreLimit fixed{kFileBytes, 1}; // what cannot be deleted, plus this one
	for (const Kept& k : list())
		if (k.name != hold.name() && (k.pinned || held(k.name))) fixed.bytes += k.bytes, ++fixed.count;
	if (fixed.bytes > limit_.bytes || fixed.count > limit_.count)
		throw ApiError(507, "there is no room for conversation '" + hold.name() + "' (--sessions-max); remove another",
		               "session", "sessions_full");
}

void SessionStore::make_room(const Hold& hold, uint64_t bytes) const {
	StoreLimit sum{bytes, 1};
	std::vector<Kept> others = list();
	std::erase_if(others, [&](const Kept& k) { return k.name == hold.name(); });
	for (const Kept& k : others) sum.bytes += k.bytes, ++sum.count;
	std::ranges::sort(others, {}, &Kept::order);
	for (const Kept& k : others) {
		if (sum.bytes <= limit_.bytes && sum.count <= limit_.count) return;
		if (k.pinned || held(k.name) || !sys::remove_file(path_of(k.name))) continue;
		sum.bytes -= k.bytes, --sum.count;
	}
	if (sum.bytes > limit_.bytes || sum.count > limit_.count)
		throw ApiError(507, "conversation '" + hold.name() + "' has no room (--sessions-max)", "session",
		               "sessions_full");
}

void SessionStore::pin(const std::string& name, bool pinned) {
	existing(name);
	const std::string path = pin_of(name);
	if (!pinned) {
		sys::remove_file(path);
		return;
	}
	const int fd = sys::open_file(path, sys::Open::Create);
	if (fd < 0) throw ApiError(500, "conversation '" + name + "' cannot be pinned: its folder refuses the file");
	sys::close_file(fd);
}

std::string SessionStore::note(const std::string& name) const {
	const std::string path = existing(name);
	std::vector<char> note;
	const kvrun_status s = fill(note, 4096, [&](char* to, size_t room, size_t* n) {
		return kvrun_session_read_note(path.c_str(), to, room, n);
	});
	if (s != KVRUN_OK)
		throw ApiError(s == KVRUN_EFORMAT ? 400 : 500, without_folder(kvrun_last_error(), name), "session");
	return {note.begin(), note.end()};
}

void SessionStore::remove(const std::string& name) {
	existing(name);
	const Hold hold(*this, name);
	sys::remove_file(hold.path());
	sys::remove_file(pin_of(name));
}

} // namespace kvrun::serve
