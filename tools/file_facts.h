// What a model's file says about its size, before or without loading it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvrun {

struct FileFacts {
	uint64_t n_params = 0, tensor_bytes = 0; // numbers of all tensors, and their bytes in the file
};
FileFacts file_facts(const std::string& path); // zeros if it cannot be read, or is no file

struct AdapterFacts {
	std::string file; // its name, without the folder
	double scale = 1;
};
std::vector<AdapterFacts> adapter_facts(const std::vector<std::string>& loras); // of --lora

} // namespace kvrun
