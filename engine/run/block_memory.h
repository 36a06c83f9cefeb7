// Activations of layers that attend to entries of blocks (Layer::blocks).
#pragma once
#include "engine/run/arena.h"
#include "models/config.h"
#include <algorithm>

namespace kvrun {

struct BlockMemory { // empty without Layer::blocks
	View kv, gates;  // (rows, channels of the widest Blocks) f32: what tokens add to their blocks
	View entry;      // (rows, head_dim) f32: of the block that would end with the row
	View att;        // (rows, n_heads * head_dim) f32: attention to entries
	View lse[2];     // (rows, n_heads) f32: normalisers of attention to the window and to entries

	void lay(Arena& a, const Config& c, uint32_t rows) {
		uint32_t width = 0, dim = 0, heads = 0;
		for (const Layer& l : c.layers)
			if (l.blocks.tokens) {
				width = std::max(width, l.blocks.width(l.head_dim));
				dim = std::max(dim, l.head_dim), heads = std::max(heads, l.n_heads);
			}
		if (!width) return;
		kv = a.take(DType::F32, rows, width), gates = a.take(DType::F32, rows, width);
		entry = a.take(DType::F32, rows, dim), att = a.take(DType::F32, rows, heads * dim);
		for (View& v : lse) v = a.take(DType::F32, rows, heads);
	}
	static size_t bytes(const Config& c, uint32_t rows) {
		Arena dry(nullptr);
		BlockMemory().lay(dry, c, rows);
		return dry.bytes();
	}
};

} // namespace kvrun
