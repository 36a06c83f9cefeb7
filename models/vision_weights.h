// Weights of a vision encoder on a backend.
#pragma once
#include "models/encoder_tensors.h"
#include "models/vision.h"

namespace kvrun {

struct VisionWeights : EncoderWeights {         // empty where the file has no such tensor
	View patch, patch_bias;                     // (dim, patch_columns()), (dim) f32
	std::vector<float> pixel_norm, pixel_bias;  // on the host: (3 * patch^2), of Projector::pixel_norm
	NormWeights embedded;                       // (dim) f32: of patches before their positions are added
	NormWeights pre, post;                      // around the layers
	NormWeights patch_norm;                     // (dim) f32
	std::vector<StepWeights> inner;             // of Projector::inner_merger, behind its attention
	std::vector<std::vector<StepWeights>> deep; // of VisionConfig::deep
	// On the host: (n, dim).
	std::vector<float> positions, class_tokens;
	std::vector<float> mean_bias, mean_scale; // (dim) of Projector::mean_scaled: (mean - bias) * scale
};
// Columns of a row of pixels: 3 * patch^2, and zeros up to a multiple of 32.
uint32_t patch_columns(const VisionConfig&);
// Throws Error{Format} if a tensor is missing or has another shape, Io, OutOfMemory.
VisionWeights load_vision(const Gguf&, const VisionConfig&, Backend&);

} // namespace kvrun
