#include "tools/adapter_facts.h"
#include "engine/core/system/files.h"
#include "models/lora.h"
#include "tools/args_model.h"
#include "tools/shortest.h"
#include <filesystem>

namespace kvrun {

std::vector<AdapterFacts> adapter_facts(const std::vector<std::string>& loras) {
	std::vector<AdapterFacts> out;
	for (const LoraOption& o : parse_loras(lora_text(loras)))
		out.push_back({sys::path_of(o.path).filename().string(), shortest(o.scale)});
	return out;
}

} // namespace kvrun
