// Folders of models on this machine and settings of the hub, from the environment variables of huggingface_hub, Ollama,
// LM Studio and llama.cpp.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace kvrun {

std::filesystem::path home_folder(); // empty: HOME is not set

// HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, else huggingface/hub in the cache folder; empty: none of them.
std::filesystem::path hub_cache();
std::filesystem::path repo_folder(const std::string& repo); // "HUB/models--USER--REPO"
std::string hub_endpoint();                                 // HF_ENDPOINT without a trailing slash
std::string hub_token(); // HF_TOKEN, else the file that `hf auth login` writes; empty: none
bool hub_is_offline();   // HF_HUB_OFFLINE

struct ModelFolder {
	std::string owner; // "hub", "kvrun", "ollama", "lmstudio", "llama.cpp"
	std::filesystem::path path;
	int deepest = 9; // levels of folders below it that are searched
};
// Folders that may hold models, whether they exist or not.
std::vector<ModelFolder> model_folders();

} // namespace kvrun
