// Deletes models that kvrun may delete, by their full names.
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "tools/hub/folders.h"
#include "tools/hub/local.h"
#include "tools/hub/names.h"
#include "tools/hub/pull.h"
#include <algorithm>
#include <set>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

// Removes a file, if it is there. Returns the bytes that are free then: none if it is a link or has another name.
uint64_t remove_file(const fs::path& p) {
	std::error_code ec;
	const bool frees = fs::is_regular_file(fs::symlink_status(p, ec)) && fs::hard_link_count(p, ec) == 1;
	const uint64_t bytes = frees ? fs::file_size(p, ec) : 0;
	if (!fs::remove(p, ec) && ec) fail(Code::Io, "{}: {}", one_line(p.string()), ec.message());
	return bytes;
}

std::vector<fs::path> below(const fs::path& folder) { // all entries, the innermost first
	std::vector<fs::path> out;
	std::error_code ec;
	for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
		out.push_back(it->path());
	std::ranges::reverse(out);
	return out;
}

void remove_empty_folders(const fs::path& folder) {
	std::error_code ec;
	for (const fs::path& p : below(folder))
		if (fs::is_directory(fs::symlink_status(p, ec))) fs::remove(p, ec); // fails if the folder is not empty
	fs::remove(folder, ec);
}

void remove_locks(const fs::path& repo) { // of fetches
	std::error_code ec;
	fs::remove_all(repo.parent_path() / ".locks" / repo.filename(), ec);
}

// Removes blobs of `named` that no snapshot refers to any more.
uint64_t remove_blobs(const fs::path& repo, const std::set<fs::path>& named) {
	std::error_code ec;
	std::set<fs::path> used;
	for (const fs::path& p : below(repo / "snapshots"))
		if (fs::is_symlink(p, ec)) used.insert(fs::weakly_canonical(p, ec));
	uint64_t freed = 0;
	for (const fs::path& p : below(repo / "blobs")) {
		const fs::path real = fs::weakly_canonical(p, ec);
		if (named.count(real) && !used.count(real)) freed += remove_file(p);
	}
	return freed;
}

// Removes the files of models in all snapshots of their repository, and vision encoders that no other model has.
uint64_t remove_from_hub(const std::vector<LocalModel>& models, const fs::path& repo) {
	std::error_code ec;
	std::set<std::string> quants;
	for (const LocalModel& m : models) quants.insert(m.name.substr(m.name.find(':') + 1));
	std::set<fs::path> named;
	uint64_t freed = 0;
	for (fs::directory_iterator s(repo / "snapshots", ec), end; !ec && s != end; s.increment(ec)) {
		std::vector<HubFile> files;
		for (const fs::path& p : below(s->path()))
			if (std::error_code e; !fs::is_directory(p, e) && is_gguf(p.string()))
				files.push_back({p.lexically_relative(s->path()).generic_string(), 0, {}, {}});
		std::set<std::string> gone, kept;
		for (const HubFile& f : files)
			if (is_encoder(f.path)) gone.insert(f.path);
		for (const HubModel& m : models_of(std::move(files))) {
			for (const HubFile& f : m.files) (quants.count(m.quant) ? gone : kept).insert(f.path);
			if (m.encoder && !quants.count(m.quant)) kept.insert(m.encoder->path);
		}
		for (const std::string& path : gone) {
			if (kept.count(path)) continue;
			const fs::path p = s->path() / sys::path_of(path);
			std::error_code e;
			if (fs::is_symlink(p, e)) named.insert(fs::weakly_canonical(p, e));
			freed += remove_file(p);
		}
	}
	freed += remove_blobs(repo, named);
	remove_empty_folders(repo / "snapshots");
	remove_empty_folders(repo / "blobs");
	if (!fs::exists(repo / "snapshots", ec) && !fs::exists(repo / "blobs", ec)) {
		fs::remove_all(repo / "refs", ec);
		remove_locks(repo);
		fs::remove(repo, ec);
	}
	return freed;
}

// Whether files of the repository have names, none of which is a model's: another program has fetched something else.
bool is_foreign(const fs::path& repo) {
	bool named = false;
	for (const fs::path& p : below(repo / "snapshots")) {
		std::error_code ec;
		if (fs::is_directory(fs::symlink_status(p, ec))) continue;
		if (is_gguf(p.string())) return false;
		named = true;
	}
	return named;
}

// Removes all files of a repository. Models are not looked for, because an interrupted fetch leaves parts of split ones
// and files that have no name yet. Of another program only such rests are removed.
uint64_t remove_repo(const fs::path& repo) {
	const std::string path = one_line(repo.string());
	const bool foreign = is_foreign(repo);
	uint64_t freed = 0, removed = 0;
	std::error_code ec;
	for (const fs::path& p : below(repo)) {
		if (fs::is_directory(fs::symlink_status(p, ec)) || (foreign && p.extension() != ".incomplete")) continue;
		freed += remove_file(p);
		++removed;
	}
	if (foreign && !removed)
		fail(Code::NotFound, "{} has no GGUF file; what another program fetched is removed with that one", path);
	if (foreign) return freed;
	remove_empty_folders(repo);
	remove_locks(repo);
	if (fs::exists(repo, ec)) fail(Code::Io, "{} has files that cannot be removed", path);
	return freed;
}

} // namespace

RemovedModel remove_model(const std::string& given) {
	const std::string name = lower_case(given);
	const auto asked = as_repo(given);
	bool whole = asked && asked->want.empty();
	std::vector<LocalModel> found;
	const std::vector<LocalModel> all = local_models();
	for (const LocalModel& m : all) {
		const std::string full = lower_case(m.name);
		if (full == name || (!m.repo.empty() && lower_case(m.repo) == name)) found.push_back(m);
	}
	std::error_code ec;
	fs::path repo = whole ? repo_folder(asked->repo) : fs::path();
	if (whole && !fs::exists(repo, ec)) repo.clear();
	if (found.empty() && repo.empty()) { // not a repository: a shorter form of one model's name
		found.push_back(one_local(all, given));
		whole = false;
	}
	if (!whole && found.size() > 1) found = {one_local(all, given)}; // one model, by its name
	std::vector<LocalModel> of_hub;
	uint64_t freed = 0;
	for (const LocalModel& m : found) {
		if (m.owner == "hub") {
			of_hub.push_back(m);
			repo = repo_folder(m.repo);
		} else if (m.owner != "kvrun") {
			fail(Code::Invalid, "{} belongs to {}, which knows what else uses it; remove it there ({})",
			     one_line(m.name), m.owner, one_line(m.path));
		} else {
			for (const std::string& part : part_names(m.path))
				for (const char* ending : {"", ".sha256"}) freed += remove_file(sys::path_of(part + ending));
		}
	}
	if (!repo.empty()) freed += whole ? remove_repo(repo) : remove_from_hub(of_hub, repo);
	return {found.size() == 1 ? found[0].name : given, freed};
}

} // namespace kvrun
