#include "tools/file_facts.h"
#include "engine/core/error.h"
#include "engine/core/system/files.h"
#include "models/gguf.h"
#include "models/lora.h"
#include "tools/args_model.h"
#include "tools/shortest.h"
#include <filesystem>

namespace kvrun {

FileFacts file_facts(const std::string& path) {
	try {
		const Gguf g = Gguf::open(path);
		FileFacts f;
		f.tensor_bytes = g.tensor_bytes();
		for (const GgufTensor& t : g.tensors()) f.n_params += t.rows() * t.cols();
		return f;
	} catch (const Error&) { return {}; } // one that is made up (synth:NAME:TYPE)
}

std::vector<AdapterFacts> adapter_facts(const std::vector<std::string>& loras) {
	std::vector<AdapterFacts> out;
	for (const LoraOption& o : parse_loras(lora_text(loras)))
		out.push_back({sys::path_of(o.path).filename().string(), shortest(o.scale)});
	return out;
}

} // namespace kvrun
