// A tiny checkpoint of tests/golden/tiny and what transformers computes of it.
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

} // namespace kvrun
