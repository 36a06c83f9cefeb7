// Models of other programs and downloads on this computer.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvrun::desktop {

struct FoundModel {
	std::string path;   // GGUF file; of a split model the first
	std::string name;   // for display: without folder and extension
	std::string source; // "Hugging Face", "Ollama", "LM Studio", "Downloads"
	uint64_t bytes = 0; // of all its parts
};

// Sorted by source, then name: those of `kvrun list`, and those of Jan, GPT4All and among the downloads. `stop`: called
// often; true ends the search.
std::vector<FoundModel> find_models(const std::function<bool()>& stop = [] { return false; });
// A model's name by its path: "SmolLM2-135M-Instruct.Q4_1".
std::string model_name(const std::string& path);

} // namespace kvrun::desktop
