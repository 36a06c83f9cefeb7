// Activation memory of MLPs, dense ones and mixtures of experts, for the largest layer of a model.
#pragma once
#include "engine/run/arena.h"
#include "models/config.h"

namespace kvrun {

struct MlpMemory {
	View gate, up; // (rows, channels) f32: of dense MLPs and of shared MLPs of mixtures
	// For mixtures, else empty: a row's logits; its experts and their weights; slots sorted by expert; then for each
	// slot the hidden values and the output of its expert. A layer uses as much of each as it needs.
	View logits;       // (rows, experts) f32
	View ids, weights; // (rows, used) u32, f32
	View tiles;        // (tiles, KV_TILE_WORDS) u32
	View slot_gate;    // (rows, used * channels) f32
	View slot_up;      // the same, if the activation function is a separate operation
	View slot_weighed; // the same, for experts_weigh_gates()
	View slot_out;     // (rows, used * width) f32
	View latent;       // (rows, latent_dim) f32, with Experts::latent_dim: what experts read, then their sum

	void lay(Arena&, const Config&, uint32_t rows);
	static size_t bytes(const Config&, uint32_t rows);
};

// Whether the weights of several experts multiply what these read. Weights then multiply gates before the activation,
// and outputs: down(f(w gate(x)) * w up(x)) is w down(f(w gate(x)) * up(x)). A single expert's input is weighed itself.
bool experts_weigh_gates(const Layer&);
// Whether expert_matmul() itself applies the layer's function to gates and factors.
bool experts_fuse_gates(const Layer&);
// The first elements of v in another shape.
inline View shaped(const View& v, uint32_t d0, uint32_t d1, uint32_t d2 = 1) {
	View r = v;
	r.shape[0] = d0, r.shape[1] = d1, r.shape[2] = d2, r.shape[3] = 1;
	KV_ASSERT(r.elements() <= v.elements());
	return r;
}

} // namespace kvrun
