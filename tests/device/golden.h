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
	std::span<const uint32_t> part(size_t from, size_t n = SIZE_MAX) const {
		return std::span(tokens).subspan(from, std::min(n, tokens.size() - from));
	}
	// Error of the logits of the rows from `first` on.
	double error(size_t first, const Floats& got) const {
		const size_t vocab = logits.size() / tokens.size();
		return relative_error(got, std::span(logits).subspan(first * vocab, got.size()));
	}
};

// A checkpoint's prompt: any cut has the same bits, decode steps between turns give the right logits.
inline void check_cuts(const std::string& name, const TestRow& row) {
	const Golden g(name);
	const auto whole = open_engine(row.device, g.model, 64);
	Session a(*whole, with("fp16", 64));
	const Floats want = prompt_logits(a, g.tokens);
	CHECK(g.error(0, want) < logits_tolerance(whole->backend(), name, /*decode=*/false));
	for (const uint32_t ubatch : {1u, 7u}) {
		const auto cut = open_engine(row.device, g.model, ubatch);
		Session b(*cut, with("fp16", 64));
		check_same_bits({row.device, row.number, fmt::format("{}, {} rows at a time", name, ubatch)},
		                prompt_logits(b, g.tokens), want);
		if (ubatch == 1) continue;
		b.reset();
		const double most = logits_tolerance(cut->backend(), name, /*decode=*/true);
		CHECK(g.error(0, prompt_logits(b, g.part(0, 9))) < most);
		CHECK(g.error(9, fed(b, g.part(9, 4))) < most);
		CHECK(g.error(13, prompt_logits(b, g.part(13))) < most);
	}
}

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
