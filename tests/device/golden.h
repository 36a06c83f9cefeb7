// A tiny checkpoint of tests/golden/tiny and the results of transformers for it.
#pragma once
#include "engine/core/npy.h"
#include "tests/device/sequences.h"

namespace kvrun {

struct Golden {
	Tokens tokens;
	Floats logits; // (tokens, vocab)
	std::string model;
	explicit Golden(const std::string& name) : model(kGolden + "tiny/" + name + ".gguf") {
		const NpyArray ids = npy_read(kGolden + "tiny/" + name + ".tokens.npy"),
		               rows = npy_read(kGolden + "tiny/" + name + ".logits.npy");
		tokens.assign(ids.as<int32_t>().begin(), ids.as<int32_t>().end());
		logits.assign(rows.as<float>().begin(), rows.as<float>().end());
	}
	// Error of the logits of the rows from `first` on.
	double error(size_t first, const Floats& got) const {
		const size_t vocab = logits.size() / tokens.size();
		return relative_error(got, std::span(logits).subspan(first * vocab, got.size()));
	}
};

// A checkpoint's prompt, read in blocks of 7 tokens that go through a layer 4 rows at a time.
inline void check_blocks(const std::string& name, const std::string& device) {
	const Golden g(name);
	EngineOptions o;
	o.model = g.model, o.backend = select_test_device(device), o.ubatch = 4, o.prefill_block = 7;
	const auto engine = Engine::open(o);
	Session s(*engine, with("fp16", 64));
	CHECK(g.error(0, prompt_logits(s, g.tokens)) < logits_tolerance(engine->backend(), name, /*decode=*/false));
}

} // namespace kvrun
