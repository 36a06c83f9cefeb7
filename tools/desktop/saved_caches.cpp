// Caches of conversations in files.
#include "tools/desktop/saved_caches.h"
#include "tools/user_files.h"
#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <vector>

namespace kvrun::desktop {
namespace fs = std::filesystem;

static std::string note_of(const std::string& kv, uint32_t ctx) { return fmt::format("{}\n{}", kv, ctx); }

void SavedCaches::save(const std::string& conversation, kvrun_session* session, const std::string& kv,
                       uint32_t ctx) const {
	if (folder_.empty()) return;
	try {
		make_private_folder(folder_);
	} catch (const StatusError&) { return; }
	const std::string note = note_of(kv, ctx);
	if (kvrun_session_save(session, path(conversation).c_str(), note.data(), note.size()) == KVRUN_OK) delete_oldest();
}

SessionHandle SavedCaches::restore(const std::string& conversation, kvrun_engine* engine, const std::string& kv,
                                   uint32_t ctx, uint32_t checkpoints) const {
	const std::string file = path(conversation), wanted = note_of(kv, ctx);
	if (folder_.empty() || !foreign_file(file).empty()) return {};
	std::string note(wanted.size() + 1, 0);
	size_t length = 0;
	if (kvrun_session_read_note(file.c_str(), note.data(), note.size(), &length) != KVRUN_OK ||
	    length != wanted.size() || note.compare(0, length, wanted) != 0)
		return {};
	kvrun_restore_options o = KVRUN_RESTORE_OPTIONS_INIT;
	o.checkpoints = checkpoints;
	SessionHandle session;
	if (create(session, kvrun_session_restore_with, engine, file.c_str(), &o) != KVRUN_OK) return {};
	return session;
}

void SavedCaches::remove(const std::string& conversation) const {
	std::error_code ec;
	if (!folder_.empty()) fs::remove(path(conversation), ec);
}

void SavedCaches::delete_oldest() const {
	struct File {
		fs::file_time_type when;
		fs::path path;
		uint64_t bytes;
	};
	std::vector<File> files;
	uint64_t bytes = 0;
	std::error_code ec;
	for (const auto& entry : fs::directory_iterator(folder_, ec)) {
		if (!entry.is_regular_file(ec)) continue;
		files.push_back({entry.last_write_time(ec), entry.path(), entry.file_size(ec)});
		bytes += files.back().bytes;
	}
	std::ranges::sort(files, {}, &File::when);
	for (size_t i = 0; i + 1 < files.size() && bytes > kMostBytes; ++i) // the newest stays
		if (fs::remove(files[i].path, ec)) bytes -= files[i].bytes;
}

} // namespace kvrun::desktop
