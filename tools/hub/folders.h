// Where models lie on this machine, and how a hub is reached: what the environment says, in the names that
// huggingface_hub, Ollama, LM Studio and llama.cpp give it.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace kvrun {

std::filesystem::path home_folder(); // empty: HOME is not set

// HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, else huggingface/hub of the cache folder; empty: nowhere.
std::filesystem::path hub_cache();
std::filesystem::path repo_folder(const std::string& repo); // "HUB/models--USER--REPO"
std::string hub_endpoint();                                 // HF_ENDPOINT, without a slash at its end
std::string hub_token(); // HF_TOKEN, else the file that `hf auth login` writes; empty: none
bool hub_is_offline();   // HF_HUB_OFFLINE

struct ModelFolder {
	std::string owner; // "hub", "kvrun", "ollama", "lmstudio", "llama.cpp"
	std::filesystem::path path;
};
// Folders that may hold models, whether they are there or not.
std::vector<ModelFolder> model_folders();

} // namespace kvrun
