// Models on this machine: found in the folders of kvrun and of other programs.
#include "tools/hub/local.h"
#include "engine/core/json_reader.h"
#include "engine/core/system/files.h"
#include "tools/hub/names.h"
#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kMostFiles = 20000; // per folder, because a wrong variable may name /
constexpr size_t kLongestManifest = 1 << 20;

using Stop = std::function<bool()>;

// Calls f with every regular file below the folder, links to files included.
template <class F> void each_file(const fs::path& folder, int deepest, const Stop& stop, F f) {
	std::error_code ec;
	size_t left = kMostFiles;
	fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, ec), end;
	for (; !ec && it != end && left-- > 0 && !stop(); it.increment(ec)) {
		std::error_code ignored;
		if (it.depth() >= deepest) it.disable_recursion_pending();
		if (fs::is_regular_file(it->path(), ignored)) f(it->path());
	}
}

struct Found {
	HubModel model;
	fs::path path;       // of its first part
	std::string encoder; // path; empty: none
};

// Complete models among the files below `folder`.
std::vector<Found> models_below(const fs::path& folder, int deepest, const Stop& stop) {
	std::vector<HubFile> files;
	each_file(folder, deepest, stop, [&](const fs::path& p) {
		std::error_code ec;
		if (const uint64_t bytes = fs::file_size(p, ec); !ec && is_gguf(p.string()))
			files.push_back({fs::path(p).lexically_relative(folder).generic_string(), bytes, {}, {}});
	});
	std::vector<Found> out;
	for (HubModel& m : models_of(std::move(files))) {
		const auto split = split_name(m.files.front().path);
		if (split && split->count != m.files.size()) continue;
		const fs::path first = folder / sys::path_of(m.files.front().path);
		const fs::path encoder = m.encoder ? folder / sys::path_of(m.encoder->path) : fs::path();
		out.push_back({std::move(m), first, encoder.string()});
	}
	return out;
}

LocalModel local(std::string name, const std::string& owner, const Found& f, std::string repo) {
	std::string encoder = repo.empty() ? "" : f.encoder; // else the folder may have encoders of other models
	return {std::move(name),   owner, f.path.string(), f.model.bytes(), uint32_t(f.model.files.size()), std::move(repo),
	        std::move(encoder)};
}

// Adds models--USER--REPO/snapshots/COMMIT/FILE; the same file in several commits counts once.
void add_hub(const ModelFolder& cache, const Stop& stop, std::vector<LocalModel>& out) {
	std::error_code ec;
	for (fs::directory_iterator it(cache.path, ec), end; !ec && it != end; it.increment(ec)) {
		const std::string folder = it->path().filename().string();
		if (!folder.starts_with("models--")) continue;
		const size_t cut = folder.find("--", 8);
		if (cut == folder.npos) continue;
		const std::string repo = folder.substr(8, cut - 8) + "/" + folder.substr(cut + 2);
		std::string newest;
		std::ifstream(it->path() / "refs/main") >> newest;
		std::map<std::string, LocalModel> by_name;
		std::error_code inner;
		for (fs::directory_iterator s(it->path() / "snapshots", inner), last; !inner && s != last; s.increment(inner))
			for (const Found& f : models_below(s->path(), cache.deepest, stop)) {
				const std::string name = repo + ":" + f.model.quant;
				if (!by_name.count(name) || s->path().filename() == newest) by_name[name] = local(name, "hub", f, repo);
			}
		for (auto& [name, m] : by_name) out.push_back(std::move(m));
	}
}

// Adds Ollama's models: manifests/HOST/USER/NAME/TAG lists layers by hash, one of which is the model.
void add_ollama(const ModelFolder& f, const Stop& stop, std::vector<LocalModel>& out) {
	const fs::path &folder = f.path, manifests = folder / "manifests";
	each_file(manifests, f.deepest, stop, [&](const fs::path& p) {
		std::ifstream in(p, std::ios::binary);
		std::string text(kLongestManifest, '\0');
		in.read(text.data(), std::streamsize(text.size()));
		text.resize(size_t(std::max<std::streamsize>(in.gcount(), 0)));
		Json manifest;
		std::string why;
		if (!read_json(text, {.depth = 16, .values = 10000, .keys = 10000, .stop = {}}, manifest, why)) return;
		if (!manifest.is_object() || !manifest.contains("layers") || !manifest["layers"].is_array()) return;
		for (const Json& layer : manifest["layers"]) {
			if (!layer.is_object() || layer.value("mediaType", Json()) != "application/vnd.ollama.image.model")
				continue;
			const Json digest = layer.value("digest", Json());
			std::string hash = digest.is_string() ? digest.get<std::string>() : "";
			if (!hash.starts_with("sha256:") || !is_safe_path(hash.substr(7)) || hash.find('/') != hash.npos) continue;
			hash[6] = '-';
			const fs::path blob = folder / "blobs" / hash;
			std::error_code ec;
			const uint64_t bytes = fs::file_size(blob, ec);
			if (ec) continue;
			fs::path name = p.lexically_relative(manifests);
			std::vector<std::string> parts;
			for (const fs::path& part : name) parts.push_back(part.string());
			if (parts.size() < 2) continue;
			std::string shown;
			for (size_t i = 1; i + 1 < parts.size(); ++i) // without the registry and its default user
				if (parts[i] != "library") shown += (shown.empty() ? "" : "/") + parts[i];
			out.push_back({shown + ":" + parts.back(), "ollama", blob.string(), bytes, 1, {}, {}});
			return;
		}
	});
}

void add_folder(const ModelFolder& f, const Stop& stop, std::vector<LocalModel>& out) {
	for (const Found& found : models_below(f.path, f.deepest, stop)) {
		const std::string below = found.path.lexically_relative(f.path).generic_string();
		const auto split = split_name(below);
		const std::string stem = split ? split->stem : below.substr(0, below.size() - 5);
		const fs::path relative = sys::path_of(below);
		std::vector<std::string> parts;
		for (const fs::path& part : relative) parts.push_back(part.string());
		std::string repo;
		if (f.owner == "lmstudio" && parts.size() == 3) repo = parts[0] + "/" + parts[1];
		out.push_back(local(repo.empty() ? sys::path_of(stem).filename().string() : repo + ":" + quant_of(below),
		                    f.owner, found, repo));
	}
}

} // namespace

std::vector<LocalModel> local_models(const std::vector<ModelFolder>& folders, const Stop& stop) {
	std::vector<LocalModel> out;
	for (const ModelFolder& f : folders) {
		if (f.owner == "hub")
			add_hub(f, stop, out);
		else if (f.owner == "ollama")
			add_ollama(f, stop, out);
		else
			add_folder(f, stop, out);
	}
	std::ranges::stable_sort(
	    out, [](const LocalModel& a, const LocalModel& b) { return lower_case(a.name) < lower_case(b.name); });
	return out;
}

} // namespace kvrun
