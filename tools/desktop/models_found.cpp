// Models of other programs and downloads on this computer.
#include "tools/desktop/models_found.h"
#include "tools/chat/store.h"
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

namespace kvrun::desktop {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 6;                          // levels of folders that are searched
constexpr size_t kMostEntries = 50000;               // files and folders per source
constexpr size_t kLongestManifest = size_t(1) << 20; // bytes

std::string variable(const char* name) {
	const char* v = std::getenv(name);
	return v ? v : "";
}

// The number of the part from "-00002-of-00005" at the end of a name; 0: the name has none.
int part_number(const std::string& stem) {
	int n = 0, all = 0;
	const size_t at = stem.size() < 15 ? stem.npos : stem.size() - 15;
	if (at == stem.npos || std::sscanf(stem.c_str() + at, "-%5d-of-%5d", &n, &all) != 2) return 0;
	return n;
}

struct Search {
	const std::function<bool()>& stop;
	std::vector<FoundModel> found;
	std::set<std::string> seen; // files by canonical path: several programs may share a folder
	size_t entries = 0;

	void add(const fs::path& p, const std::string& name, const std::string& source) {
		std::error_code ec;
		const fs::path real = fs::canonical(p, ec);
		if (ec || !seen.insert(real.string()).second) return;
		const uint64_t bytes = fs::file_size(real, ec);
		if (ec || bytes == 0) return;
		found.push_back({p.string(), name, source, bytes});
	}
	void add_parts(const fs::path& first, FoundModel& m) { // adds the sizes of the other files of a split model
		std::error_code ec;
		const std::string stem = first.stem().string(), base = stem.substr(0, stem.size() - 15);
		for (const auto& e : fs::directory_iterator(first.parent_path(), ec)) {
			const std::string other = e.path().stem().string();
			if (other.starts_with(base + "-") && part_number(other) > 1) m.bytes += e.file_size(ec);
		}
	}
	void folder(const fs::path& root, const std::string& source, int deepest = kDeepest) {
		std::error_code ec;
		fs::recursive_directory_iterator at(root, fs::directory_options::skip_permission_denied, ec), end;
		for (entries = 0; !ec && at != end && ++entries < kMostEntries && !stop(); at.increment(ec)) {
			if (at.depth() >= deepest) at.disable_recursion_pending();
			const fs::path& p = at->path();
			std::string name = p.filename().string();
			std::ranges::transform(name, name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
			if (!name.ends_with(".gguf") || name.find("mmproj") != name.npos || !at->is_regular_file(ec)) continue;
			const int part = part_number(p.stem().string());
			if (part > 1) continue;
			const size_t before = found.size();
			add(p, model_name(p.string()), source);
			if (part == 1 && found.size() > before) add_parts(p, found.back());
		}
	}
	// Ollama stores weights by hash; files below "manifests" list the weights of each model.
	void ollama(const fs::path& root) {
		std::error_code ec;
		fs::recursive_directory_iterator at(root / "manifests", fs::directory_options::skip_permission_denied, ec), end;
		for (entries = 0; !ec && at != end && ++entries < kMostEntries && !stop(); at.increment(ec)) {
			if (at.depth() >= kDeepest) at.disable_recursion_pending();
			if (!at->is_regular_file(ec)) continue;
			try {
				const auto j = nlohmann::json::parse(read_text_file(at->path().string(), kLongestManifest));
				for (const auto& layer : j.at("layers")) {
					if (layer.at("mediaType") != "application/vnd.ollama.image.model") continue;
					std::string blob = layer.at("digest");
					std::ranges::replace(blob, ':', '-');
					const fs::path& p = at->path();
					if (blob.find('/') == blob.npos)
						add(root / "blobs" / blob,
						    fmt::format("{}:{}", p.parent_path().filename().string(), p.filename().string()), "Ollama");
				}
			} catch (const std::exception&) { continue; } // another kind of file, or damaged
		}
	}
};

} // namespace

std::string model_name(const std::string& path) {
	std::string stem = fs::path(path).stem().string();
	if (part_number(stem)) stem.erase(stem.size() - 15);
	return stem;
}

std::vector<FoundModel> find_models(const std::function<bool()>& stop) {
	Search s{stop, {}, {}};
	const std::string home = variable("HOME");
	const auto at_home = [&](const char* below) { return fs::path(home) / below; };
	const auto either = [&](const char* name, const fs::path& usual) {
		const std::string v = variable(name);
		return v.empty() ? usual : fs::path(v);
	};
	const fs::path cache = either("XDG_CACHE_HOME", at_home(".cache")),
	               data = either("XDG_DATA_HOME", at_home(".local/share"));
	s.folder(either("KVRUN_MODELS", cache / "kvrun/models"), "kvrun");
	s.folder(either("HF_HUB_CACHE", either("HF_HOME", cache / "huggingface") / "hub"), "Hugging Face");
	s.ollama(either("OLLAMA_MODELS", at_home(".ollama/models")));
	s.ollama("/usr/share/ollama/.ollama/models");
	s.folder(at_home(".lmstudio/models"), "LM Studio");
	s.folder(cache / "lm-studio/models", "LM Studio");
	s.folder(data / "Jan/data/llamacpp/models", "Jan");
	s.folder(data / "nomic.ai/GPT4All", "GPT4All", 1);
	s.folder(cache / "llama.cpp", "llama.cpp", 1);
	s.folder(either("XDG_DOWNLOAD_DIR", at_home("Downloads")), "Downloads", 2);
	std::ranges::stable_sort(s.found, [](const FoundModel& a, const FoundModel& b) {
		return a.source != b.source ? false : a.name < b.name;
	});
	return s.found;
}

} // namespace kvrun::desktop
