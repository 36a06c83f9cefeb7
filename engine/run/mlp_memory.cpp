// Activations of MLPs: room for the largest layer of a model.
#include "engine/run/mlp_memory.h"
#include <algorithm>

namespace kvrun {

bool experts_weigh_gates(const Layer& l) { return l.experts.weigh_input && l.experts.used > 1; }
bool experts_fuse_gates(const Layer& l) {
	return !experts_weigh_gates(l) && l.mlp == MlpKind::Gated && l.experts.limit == kUnlimited && !l.gate_cap &&
	       (l.experts.clamped || l.activation == Activation::Silu);
}

void MlpMemory::lay(Arena& a, const Config& c, uint32_t rows) {
	uint32_t dense = 0, experts = 0, used = 0, inside = 0, inside_apart = 0, weighed = 0, most_tiles = 0,
	         outside = c.dim, latents = 0;
	for (const Layer& l : c.layers) {
		const Experts& e = l.experts;
		dense = std::max({dense, e.with_mlp() ? l.hidden_dim : e.shared_dim, c.layer_input_dim});
		if (!e.n) continue;
		experts = std::max(experts, e.n), used = std::max(used, e.used);
		inside = std::max(inside, e.used * e.hidden_dim);
		outside = std::max(outside, e.used * e.width(c.dim)), latents = std::max(latents, e.latent_dim);
		if (!experts_fuse_gates(l)) inside_apart = std::max(inside_apart, e.used * e.hidden_dim);
		if (experts_weigh_gates(l)) weighed = std::max(weighed, e.used * e.hidden_dim);
		most_tiles = std::max(most_tiles, expert_tiles(rows * e.used, e.n));
		const Experts& v = l.value_experts;
		if (!v.n) continue;
		experts = std::max(experts, v.n), used = std::max(used, v.used);
		inside = std::max(inside, v.used * v.hidden_dim);
		most_tiles = std::max(most_tiles, expert_tiles(rows * v.used, v.n));
	}
	gate = a.take(DType::F32, rows, dense);
	up = a.take(DType::F32, rows, dense);
	if (!experts) return;
	logits = a.take(DType::F32, rows, experts);
	ids = a.take(DType::U32, rows, used);
	weights = a.take(DType::F32, rows, used);
	tiles = a.take(DType::U32, most_tiles, KV_TILE_WORDS);
	slot_gate = a.take(DType::F32, rows, inside);
	if (inside_apart) slot_up = a.take(DType::F32, rows, inside_apart);
	if (weighed) slot_weighed = a.take(DType::F32, rows, weighed);
	slot_out = a.take(DType::F32, rows, outside); // at least a row of the model, for shared MLPs
	if (latents) latent = a.take(DType::F32, rows, latents);
}

size_t MlpMemory::bytes(const Config& c, uint32_t rows) {
	Arena dry(nullptr);
	MlpMemory().lay(dry, c, rows);
	return dry.bytes();
}

} // namespace kvrun
