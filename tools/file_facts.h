// What a model's file says about its size, before or without loading it.
#pragma once
#include <cstdint>
#include <string>

namespace kvrun {

struct FileFacts {
	uint64_t n_params = 0, tensor_bytes = 0; // numbers of all tensors, and their bytes in the file
};
FileFacts file_facts(const std::string& path); // zeros if it cannot be read, or is no file

} // namespace kvrun
