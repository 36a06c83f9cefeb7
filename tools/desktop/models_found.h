// Models that other programs and downloads have left on this computer.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvrun::desktop {

struct FoundModel {
	std::string path;   // GGUF file, of a split one the first
	std::string name;   // to be shown: without folder and ending
	std::string source; // "Hugging Face", "Ollama", "LM Studio", "Downloads"
	uint64_t bytes = 0; // of all its parts
};

// By source, then name. Looks into the folders those programs use, as the environment and HOME name them; nothing is
// opened but Ollama's lists. `stop`: whether to give up, asked often.
std::vector<FoundModel> find_models(const std::function<bool()>& stop = [] { return false; });
// A model's name by its path: "SmolLM2-135M-Instruct.Q4_1".
std::string model_name(const std::string& path);

} // namespace kvrun::desktop
