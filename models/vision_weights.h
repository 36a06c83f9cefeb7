// Weights of a vision encoder on a backend.
#pragma once
#include "models/vision.h"
#include "models/weights.h"

namespace kvrun {

struct StepWeights { // of a Step
	Step::Kind kind = Step::End;
	NormWeights norm = {}; // (columns) f32
	float norm_eps = 0;
	Activation function = Activation::None;
	View w = {}, bias = {};      // (rows, columns), (rows) f32; of a gated MLP its last matrix
	View gate = {}, up = {};     // (hidden, columns)
	uint32_t rows = 0;           // columns of the result
	std::vector<float> row = {}; // (rows) on the host, of Step::joins(); (queries, columns) of Step::Queries
	// Of Step::Queries, whose last matrix is w: (columns, columns), (columns) f32.
	View wq = {}, bq = {}, wk = {}, bk = {}, wv = {}, bv = {};
};
struct VisionWeights {                          // empty where the file has no such tensor
	View patch, patch_bias;                     // (dim, patch_columns()), (dim) f32
	std::vector<float> pixel_norm, pixel_bias;  // on the host: (3 * patch^2), of Projector::pixel_norm
	NormWeights embedded;                       // (dim) f32: of patches before their positions are added
	NormWeights pre, post;                      // around the layers
	Weights transformer;                        // its layers alone
	NormWeights patch_norm;                     // (dim) f32
	std::vector<StepWeights> projector, inner;  // inner: of Projector::inner_merger, behind its attention
	std::vector<std::vector<StepWeights>> deep; // of VisionConfig::deep
	// On the host: (n, dim).
	std::vector<float> positions, class_tokens;
	std::vector<float> mean_bias, mean_scale; // (dim) of Projector::mean_scaled: (mean - bias) * scale
	std::deque<Buffer> buffers;
	size_t bytes = 0;
};
// Columns of a row of pixels: 3 * patch^2, and zeros up to a multiple of 32.
uint32_t patch_columns(const VisionConfig&);
// Throws Error{Format} if a tensor is missing or has another shape, Io, OutOfMemory.
VisionWeights load_vision(const Gguf&, const VisionConfig&, Backend&);

} // namespace kvrun
