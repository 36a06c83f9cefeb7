// Weights of a vision encoder on a backend.
#pragma once
#include "models/vision.h"
#include "models/weights.h"

namespace kvrun {

struct ProjectorWeights {            // empty where the file has no such tensor
	NormWeights norm;                // (dim * merge^2) f32
	View linear;                     // (dim or out_dim, dim * merge^2)
	View in, in_bias, out, out_bias; // (hidden, ..), (out_dim, hidden)
};
struct VisionWeights {      // likewise
	View patch, patch_bias; // (dim, patch_columns()), (dim) f32
	NormWeights pre, post;  // around the layers
	Weights transformer;    // its layers alone
	NormWeights patch_norm; // (dim) f32
	ProjectorWeights projector;
	std::vector<ProjectorWeights> deep; // of VisionConfig::deep
	// On the host: (n, dim), (dim), (out_dim).
	std::vector<float> positions, class_token, row_end;
	std::deque<Buffer> buffers;
	size_t bytes = 0;
};
// Columns of a row of pixels: 3 * patch^2, and zeros up to a multiple of 32.
uint32_t patch_columns(const VisionConfig&);
// Throws Error{Format} if a tensor is missing or has another shape, Io, OutOfMemory.
VisionWeights load_vision(const Gguf&, const VisionConfig&, Backend&);

} // namespace kvrun
