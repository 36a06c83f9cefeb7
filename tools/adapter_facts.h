// The adapters of a model that is served.
#pragma once
#include <string>
#include <vector>

namespace kvrun {

struct AdapterFacts {
	std::string file; // its name, without the folder
	double scale = 1;
};
std::vector<AdapterFacts> adapter_facts(const std::vector<std::string>& loras); // of --lora

} // namespace kvrun
