// Models of other programs and downloads on this computer.
#include "tools/desktop/models_found.h"
#include "tools/hub/local.h"
#include "tools/hub/names.h"
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>

namespace kvrun::desktop {

namespace fs = std::filesystem;

std::string model_name(const std::string& path) {
	const auto split = split_name(path);
	return split ? fs::path(split->stem).filename().string() : fs::path(path).stem().string();
}

std::vector<FoundModel> find_models(const std::function<bool()>& stop) {
	const auto either = [](const char* name, const fs::path& usual) {
		const char* v = std::getenv(name);
		return v && *v ? fs::path(v) : usual;
	};
	const fs::path home = home_folder(), data = either("XDG_DATA_HOME", home / ".local/share");
	std::vector<ModelFolder> folders = model_folders();
	folders.push_back({"Jan", data / "Jan/data/llamacpp/models"});
	folders.push_back({"GPT4All", data / "nomic.ai/GPT4All", 1});
	folders.push_back({"Downloads", either("XDG_DOWNLOAD_DIR", home / "Downloads"), 2});
	constexpr std::pair<const char*, const char*> kLabels[] = {
	    {"hub", "Hugging Face"}, {"ollama", "Ollama"}, {"lmstudio", "LM Studio"}};
	const std::vector<LocalModel> all = local_models(folders, stop);
	std::vector<FoundModel> found;
	std::set<std::string> seen; // files by canonical path: several programs may share a folder
	for (const ModelFolder& f : folders)
		for (const LocalModel& m : all) {
			std::error_code ec;
			const fs::path real = m.owner == f.owner ? fs::canonical(m.path, ec) : fs::path();
			if (ec || real.empty() || m.bytes == 0 || !seen.insert(real.string()).second) continue;
			const auto* label = std::ranges::find(kLabels, m.owner, &std::pair<const char*, const char*>::first);
			found.push_back({m.path, m.owner == "ollama" ? m.name : model_name(m.path),
			                 label == std::end(kLabels) ? m.owner : label->second, m.bytes});
		}
	return found;
}

} // namespace kvrun::desktop
