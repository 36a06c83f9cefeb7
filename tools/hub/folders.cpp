// Folders of models on this machine and settings of the hub, from the environment variables of huggingface_hub, Ollama,
// LM Studio and llama.cpp.
#include "tools/hub/folders.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "engine/core/system/machine.h"
#include "engine/core/utf8.h"
#include "tools/env.h"
#include "tools/hub/names.h"
#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

// A path from an environment variable; ~ is the home folder.
fs::path folder_variable(const char* name) {
	const std::string v = variable(name);
	if (v == "~" || v.starts_with("~/")) return home_folder() / v.substr(std::min<size_t>(v.size(), 2));
	return sys::path_of(v);
}

fs::path cache_folder() { // shared by all programs
	if (const std::string x = variable("XDG_CACHE_HOME"); sys::path_of(x).is_absolute()) return sys::path_of(x);
	const fs::path home = home_folder();
	return home.empty() ? home : home / ".cache";
}

fs::path hub_home() {
	if (const fs::path p = folder_variable("HF_HOME"); !p.empty()) return p;
	const fs::path cache = cache_folder();
	return cache.empty() ? cache : cache / "huggingface";
}

} // namespace

fs::path home_folder() { return sys::path_of(sys::home_folder()); }

fs::path hub_cache() {
	for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
		if (const fs::path p = folder_variable(name); !p.empty()) return fs::absolute(p);
	const fs::path home = hub_home();
	return home.empty() ? home : fs::absolute(home / "hub");
}

fs::path repo_folder(const std::string& repo) {
	const fs::path cache = hub_cache();
	if (cache.empty())
		fail(Code::NotFound, "no folder for models is known: neither HOME nor HF_HUB_CACHE is set; set one of them");
	const size_t slash = repo.find('/');
	return cache / ("models--" + repo.substr(0, slash) + "--" + repo.substr(slash + 1));
}

std::string hub_endpoint() {
	std::string e = variable("HF_ENDPOINT");
	if (e.empty()) e = "https://huggingface.co";
	while (e.ends_with("/")) e.pop_back();
	if (!e.starts_with("https://") && !e.starts_with("http://"))
		fail(Code::Invalid, "HF_ENDPOINT is '{}', expected an address that begins with https://", one_line(e));
	return e;
}

std::string hub_token() {
	std::string token = variable("HF_TOKEN");
	if (token.empty()) token = variable("HUGGING_FACE_HUB_TOKEN");
	if (token.empty()) {
		fs::path file = folder_variable("HF_TOKEN_PATH");
		if (file.empty() && !hub_home().empty()) file = hub_home() / "token";
		std::ifstream in(file);
		std::getline(in, token);
	}
	std::erase_if(token, [](char c) { return c == '\n' || c == '\r' || c == ' ' || c == '\t'; });
	if (std::ranges::any_of(token, [](char c) { return c < '!' || c > '~'; }))
		fail(Code::Invalid, "HF_TOKEN has a character that no token has; set it again");
	return token;
}

bool hub_is_offline() {
	const std::string v = lower_case(variable("HF_HUB_OFFLINE"));
	return v == "1" || v == "true" || v == "yes" || v == "on";
}

std::vector<ModelFolder> model_folders() {
	std::vector<ModelFolder> out;
	const auto add = [&](const char* owner, const fs::path& p) {
		if (!p.empty() && std::ranges::none_of(out, [&](const ModelFolder& f) { return f.path == p; }))
			out.push_back({owner, p});
	};
	const fs::path home = home_folder(), cache = cache_folder();
	const auto below = [](const fs::path& base, const char* rest) { return base.empty() ? base : base / rest; };
	add("hub", hub_cache());
	if (const fs::path p = folder_variable("KVRUN_MODELS"); !p.empty())
		add("kvrun", p);
	else
		add("kvrun", below(cache, "kvrun/models"));
	add("ollama", folder_variable("OLLAMA_MODELS"));
	add("ollama", below(home, ".ollama/models"));
	add("ollama", "/usr/share/ollama/.ollama/models"); // of the service that Ollama's installer sets up
	add("lmstudio", below(home, ".lmstudio/models"));
	add("lmstudio", below(cache, "lm-studio/models")); // of older versions
	if (const fs::path p = folder_variable("LLAMA_CACHE"); !p.empty())
		add("llama.cpp", p);
	else
		add("llama.cpp", below(cache, "llama.cpp"));
	return out;
}

} // namespace kvrun
