// Activations of layers with an indexer.
#pragma once
#include "engine/run/arena.h"
#include "models/config.h"

namespace kvrun {

struct IndexMemory { // empty without Config::indexer
	View q;          // (rows, heads * channels) f32
	View k, mean;    // (rows, channels) f32: of tokens; of the latest tokens, as many as a block has
	View shares;     // (channels, tokens of a block) f32, 1 / tokens: weights of that mean
	View weights;    // (rows, heads) f32: of heads, of Indexer::of_latent
	View gates; // (rows, channels) f32, of Indexer::gated, instead of shares; of_entries: they and k are twice as wide

	void lay(Arena& a, const Config& c, uint32_t rows) {
		const Indexer& x = c.indexer;
		if (!x.block) return;
		q = a.take(DType::F32, rows, x.n_heads * x.dim);
		const uint32_t width = (x.of_entries ? 2 : 1) * x.dim;
		k = a.take(DType::F32, rows, width), mean = a.take(DType::F32, rows, x.dim);
		if (x.gated || x.of_entries)
			gates = a.take(DType::F32, rows, width);
		else if (x.block > 1)
			shares = a.take(DType::F32, x.dim, x.block);
		if (x.of_latent) weights = a.take(DType::F32, rows, x.n_heads);
	}
	static size_t bytes(const Config& c, uint32_t rows) {
		Arena dry(nullptr);
		IndexMemory().lay(dry, c, rows);
		return dry.bytes();
	}
};

} // namespace kvrun
