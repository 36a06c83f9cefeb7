// Activations of latent attention.
#pragma once
#include "engine/run/expanded.h"

namespace kvrun {

struct LatentMemory { // all layers that have one have the same shape; empty without Layer::latent
	View q_a;         // (rows, q_rank) f32; empty without Latent::q_rank
	View q_nope;      // (rows, n_heads * nope_dim) f32
	View q_rope;      // (rows, n_heads * rope_dim) f32; with Latent::no_rope zeros
	View no_key;      // (rows, rope_dim) f32, of Latent::no_rope: zeros in place of rotated keys
	View values;      // (rows, n_heads * v_dim) f32, or (rows, Latent::out_width())
	View heads;       // (rows, n_heads or out_groups) u32: their numbers, in the place of experts
	View tiles;       // (tiles, KV_TILE_WORDS) u32, of rows of a prompt: heads sorted
	// Of the expanded form, else empty: turned into columns, attn_k_b's rows make keys of latents.
	View units;      // (n_heads * nope_dim, nope_dim) f32: of each head the unit vectors
	View unit_heads; // (n_heads, nope_dim) u32: their heads
	View unit_tiles; // (tiles, KV_TILE_WORDS) u32
	View columns;    // (n_heads, nope_dim, rank) f32, where activations have fewer rows
	View key_rows;   // (n_heads * nope_dim, rank) f16

	void lay(Arena& a, const Config& c, uint32_t rows) {
		const Layer* layer = latent_layer(c);
		if (!layer) return;
		const Latent& t = layer->latent;
		const uint32_t n = t.out_groups ? t.out_groups : c.n_heads; // matrices, one for each head or group
		if (t.q_rank) q_a = a.take(DType::F32, rows, t.q_rank);
		if (!t.out_groups) q_nope = a.take(DType::F32, rows, n * t.nope_dim);
		q_rope = a.take(DType::F32, rows, c.n_heads * t.rope_dim);
		if (t.no_rope) no_key = a.take(DType::F32, rows, t.rope_dim);
		values = a.take(DType::F32, rows, t.out_groups ? t.out_width() : n * t.v_dim);
		heads = a.take(DType::U32, rows, n);
		tiles = a.take(DType::U32, expert_tiles(rows * n, n), KV_TILE_WORDS);
		if (!can_expand(t)) return;
		units = a.take(DType::F32, n * t.nope_dim, t.nope_dim);
		unit_heads = a.take(DType::U32, n, t.nope_dim);
		unit_tiles = a.take(DType::U32, expert_tiles(n * t.nope_dim, n), KV_TILE_WORDS);
		if (rows < t.nope_dim) columns = a.take(DType::F32, n, t.nope_dim, t.rank);
		key_rows = a.take(DType::F16, n * t.nope_dim, t.rank);
	}
	static size_t bytes(const Config& c, uint32_t rows) {
		Arena dry(nullptr);
		LatentMemory().lay(dry, c, rows);
		return dry.bytes();
	}
};

} // namespace kvrun
