// Models on this machine: found in the folders of kvrun and of other programs, and by name.
#include "tools/hub/local.h"
#include "engine/core/edit_distance.h"
#include "engine/core/error.h"
#include "engine/core/json_reader.h"
#include "engine/core/system/files.h"
#include "engine/core/utf8.h"
#include "models/synth/shape.h"
#include "tools/hub/folders.h"
#include "tools/hub/names.h"
#include <algorithm>
#include <cctype>
#include <fmt/ranges.h>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;
constexpr size_t kMostFiles = 20000; // per folder, because a wrong variable may name /
constexpr size_t kLongestManifest = 1 << 20;

// Calls f with every regular file below the folder, links to files included.
template <class F> void each_file(const fs::path& folder, F f) {
	std::error_code ec;
	size_t left = kMostFiles;
	fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, ec), end;
	for (; !ec && it != end && left-- > 0; it.increment(ec)) {
		std::error_code ignored;
		if (it.depth() > 8) it.disable_recursion_pending();
		if (fs::is_regular_file(it->path(), ignored)) f(it->path());
	}
}

// Complete models among the files below `folder`, each with the path of its first part.
std::vector<std::pair<HubModel, fs::path>> models_below(const fs::path& folder) {
	std::vector<HubFile> files;
	each_file(folder, [&](const fs::path& p) {
		std::error_code ec;
		if (const uint64_t bytes = fs::file_size(p, ec); !ec && is_gguf(p.string()))
			files.push_back({fs::path(p).lexically_relative(folder).generic_string(), bytes, {}, {}});
	});
	std::vector<std::pair<HubModel, fs::path>> out;
	for (HubModel& m : models_of(std::move(files))) {
		const auto split = split_name(m.files.front().path);
		if (split && split->count != m.files.size()) continue;
		const fs::path first = folder / m.files.front().path;
		out.emplace_back(std::move(m), first);
	}
	return out;
}

LocalModel local(std::string name, const std::string& owner, const HubModel& m, const fs::path& path,
                 std::string repo = {}) {
	return {std::move(name), owner, path.string(), m.bytes(), uint32_t(m.files.size()), std::move(repo)};
}

// Adds models--USER--REPO/snapshots/COMMIT/FILE; the same file in several commits counts once.
void add_hub(const fs::path& cache, std::vector<LocalModel>& out) {
	std::error_code ec;
	for (fs::directory_iterator it(cache, ec), end; !ec && it != end; it.increment(ec)) {
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
			for (const auto& [m, path] : models_below(s->path())) {
				const std::string name = repo + ":" + m.quant;
				if (!by_name.count(name) || s->path().filename() == newest)
					by_name[name] = local(name, "hub", m, path, repo);
			}
		for (auto& [name, m] : by_name) out.push_back(std::move(m));
	}
}

// Adds Ollama's models: manifests/HOST/USER/NAME/TAG lists layers by hash, one of which is the model.
void add_ollama(const fs::path& folder, std::vector<LocalModel>& out) {
	each_file(folder / "manifests", [&](const fs::path& p) {
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
			fs::path name = p.lexically_relative(folder / "manifests");
			std::vector<std::string> parts;
			for (const fs::path& part : name) parts.push_back(part.string());
			if (parts.size() < 2) continue;
			std::string shown;
			for (size_t i = 1; i + 1 < parts.size(); ++i) // without the registry and its default user
				if (parts[i] != "library") shown += (shown.empty() ? "" : "/") + parts[i];
			out.push_back({shown + ":" + parts.back(), "ollama", blob.string(), bytes, 1, {}});
			return;
		}
	});
}

void add_folder(const ModelFolder& f, std::vector<LocalModel>& out) {
	for (const auto& [m, path] : models_below(f.path)) {
		const std::string below = path.lexically_relative(f.path).generic_string();
		const auto split = split_name(below);
		const std::string stem = split ? split->stem : below.substr(0, below.size() - 5);
		const fs::path relative = sys::path_of(below);
		std::vector<std::string> parts;
		for (const fs::path& part : relative) parts.push_back(part.string());
		std::string repo;
		if (f.owner == "lmstudio" && parts.size() == 3) repo = parts[0] + "/" + parts[1];
		out.push_back(local(repo.empty() ? sys::path_of(stem).filename().string() : repo + ":" + quant_of(below),
		                    f.owner, m, path, repo));
	}
}

// Letters and digits in lower case.
std::string bare(std::string_view s) {
	std::string out;
	for (const char c : s)
		if (std::isalnum(uint8_t(c)) || uint8_t(c) >= 0x80) out += char(std::tolower(uint8_t(c)));
	return out;
}

// The full names of a model.
std::vector<std::string> names_of(const LocalModel& m) {
	std::vector<std::string> out = {m.name};
	const size_t colon = m.name.find(':');
	if (colon != m.name.npos) out.push_back(m.name.substr(0, colon));
	if (m.owner == "ollama" && !m.name.ends_with(":latest")) out.pop_back();
	for (size_t i = 0, n = out.size(); i < n; ++i)
		if (const size_t slash = out[i].find('/'); slash != out[i].npos) out.push_back(out[i].substr(slash + 1));
	if (m.owner != "ollama") out.push_back(sys::path_of(m.path).stem().string());
	return out;
}

} // namespace

std::vector<LocalModel> local_models() {
	std::vector<LocalModel> out;
	for (const ModelFolder& f : model_folders()) {
		if (f.owner == "hub")
			add_hub(f.path, out);
		else if (f.owner == "ollama")
			add_ollama(f.path, out);
		else
			add_folder(f, out);
	}
	std::ranges::stable_sort(
	    out, [](const LocalModel& a, const LocalModel& b) { return lower_case(a.name) < lower_case(b.name); });
	return out;
}

std::vector<LocalModel> find_local(const std::vector<LocalModel>& all, const std::string& given) {
	const std::string name = lower_case(given), begins = bare(given);
	std::vector<LocalModel> exact, near;
	for (const LocalModel& m : all) {
		const std::vector<std::string> names = names_of(m);
		if (std::ranges::any_of(names, [&](const std::string& n) { return lower_case(n) == name; }))
			exact.push_back(m);
		else if (!begins.empty() &&
		         std::ranges::any_of(names, [&](const std::string& n) { return bare(n).starts_with(begins); }))
			near.push_back(m);
	}
	std::vector<LocalModel>& found = exact.empty() ? near : exact;
	if (found.size() > 1 && std::ranges::count(found, given, &LocalModel::name) == 1)
		std::erase_if(found, [&](const LocalModel& m) { return m.name != given; });
	// one file under several names, or in folders of two programs, is one model
	std::vector<LocalModel> out;
	for (LocalModel& m : found) {
		std::error_code ec;
		if (std::ranges::none_of(out, [&](const LocalModel& o) {
			    return fs::equivalent(sys::path_of(o.path), sys::path_of(m.path), ec);
		    }))
			out.push_back(std::move(m));
	}
	return out;
}

namespace {

// Names of local models that are most similar to the given one, the nearest first.
std::vector<std::string> nearest_names(const std::vector<LocalModel>& all, const std::string& given) {
	constexpr size_t kMost = 3, kLongest = 64;
	const std::string word = bare(given).substr(0, kLongest);
	std::vector<std::pair<size_t, std::string>> found;
	for (const LocalModel& m : all) {
		size_t best = SIZE_MAX;
		for (const std::string& n : names_of(m)) {
			const std::string b = bare(n).substr(0, kLongest);
			// for a longer name only its beginning counts
			best = std::min(best, edit_distance(word, b.substr(0, word.size() + 1)));
		}
		if (best <= std::max<size_t>(1, word.size() / 2)) found.emplace_back(best, m.name);
	}
	std::ranges::stable_sort(found, {}, &std::pair<size_t, std::string>::first);
	std::vector<std::string> out;
	for (size_t i = 0; i < found.size() && i < kMost; ++i) out.push_back(one_line(found[i].second));
	return out;
}

[[noreturn]] void fail_unknown(const std::vector<LocalModel>& all, const std::string& given) {
	const auto repo = as_repo(given);
	const std::vector<std::string> near = nearest_names(all, given);
	std::string text = fmt::format("no file and no model here is called '{}'; ", one_line(given));
	if (!near.empty())
		text += fmt::format("here {}: {}; ", near.size() == 1 ? "is" : "are", fmt::join(near, ", "));
	else
		text += fmt::format("{}; ", all.empty() ? "no models are here yet" : "'kvrun list' shows what is here");
	text += repo ? fmt::format("'kvrun pull {}' fetches it", one_line(given))
	             : "'kvrun pull USER/REPO' fetches one from huggingface.co";
	text += "; or give the path of a .gguf file";
	fail(Code::NotFound, "{}", text);
}

} // namespace

std::string resolve_model(const std::string& given) {
	std::error_code ec;
	if (given.empty() || given.find('\0') != given.npos || is_synth(given) || fs::exists(sys::path_of(given), ec) || ec)
		return given; // opening the file reports what is wrong
	const bool path = is_gguf(given) || given.starts_with("/") || given.starts_with("./") || given.starts_with("../") ||
	                  given.starts_with("~");
	if (path) return given;
	const std::vector<LocalModel> all = local_models();
	const std::vector<LocalModel> found = find_local(all, given);
	if (found.empty()) fail_unknown(all, given);
	if (found.size() == 1) return found[0].path;
	constexpr size_t kMost = 8;
	std::vector<std::string> names;
	for (const LocalModel& m : found)
		if (names.size() < kMost) names.push_back(one_line(m.name));
	fail(Code::Invalid, "'{}' means {} models here: {}{}; give one of these names", one_line(given), found.size(),
	     fmt::join(names, ", "), found.size() > kMost ? ", .." : "");
}

} // namespace kvrun
