#include "tools/file_facts.h"
#include "engine/core/error.h"
#include "models/gguf.h"

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

} // namespace kvrun
