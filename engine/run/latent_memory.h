// Activations of latent attention.
#pragma once
#include "engine/run/arena.h"
#include "models/config.h"

namespace kvrun {

struct LatentMemory { // all layers that have one have the same shape; empty without Layer::latent
	View q_a;         // (rows, q_rank) f32; empty without Latent::q_rank
	View q_nope;      // (rows, n_heads * nope_dim) f32
	View q_rope;      // (rows, n_heads * rope_dim) f32
	View values;      // (rows, n_heads * v_dim) f32
	View heads;       // (rows, n_heads) u32: numbers of heads, in the place of experts
	View tiles;       // (tiles, KV_TILE_WORDS) u32, of rows of a prompt: heads sorted

	void lay(Arena& a, const Config& c, uint32_t rows) {
		Latent t;
		for (const Layer& l : c.layers)
			if (l.latent.rank) t = l.latent;
		const uint32_t n = c.n_heads;
		if (!t.rank) return;
		if (t.q_rank) q_a = a.take(DType::F32, rows, t.q_rank);
		q_nope = a.take(DType::F32, rows, n * t.nope_dim);
		q_rope = a.take(DType::F32, rows, n * t.rope_dim);
		values = a.take(DType::F32, rows, n * t.v_dim);
		heads = a.take(DType::U32, rows, n);
		tiles = a.take(DType::U32, expert_tiles(rows * n, n), KV_TILE_WORDS);
	}
	static size_t bytes(const Config& c, uint32_t rows) {
		Arena dry(nullptr);
		LatentMemory().lay(dry, c, rows);
		return dry.bytes();
	}
};

} // namespace kvrun
