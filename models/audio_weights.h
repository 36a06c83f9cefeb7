// Weights of an audio encoder on a backend.
#pragma once
#include "models/audio.h"
#include "models/encoder_tensors.h"

namespace kvrun {

struct ConvolutionWeights {   // of three places along time, and along frequencies if it has two dimensions
	View w, bias;             // (out, columns()), (out) f32
	NormWeights norm;         // (out) f32
	uint32_t in = 0, out = 0; // channels
	uint32_t step = 2;        // places from one result to the next
	bool plane = false;       // two dimensions
	bool across = false;      // weights have frequencies outside of time
	uint32_t places() const { return plane ? 9 : 3; }
	uint32_t columns() const { return (in * places() + 31) / 32 * 32; } // and zeros
};
struct ConformerMlp {
	View up, down;
	NormWeights norm, post_norm;
};
struct ConformerWeights { // of a layer
	ConformerMlp first, second;
	NormWeights attn_norm, attn_post_norm, conv_norm, conv_post_norm, out_norm;
	View q, k, v, out;         // (dim, dim)
	View widen, narrow;        // (2 * dim, dim), (dim, dim), around the convolution
	std::vector<float> kernel; // (dim, AudioConfig::kernel), on the host
	std::vector<float> scale;  // (head_dim): of queries, likewise
	std::vector<float> places; // (12, dim): keys of distances 0 .. 11, likewise
};
struct AudioWeights : EncoderWeights {
	std::vector<ConvolutionWeights> convolutions;
	View in, in_bias;                // (dim, columns of the convolutions), (dim) f32; empty without
	std::vector<float> positions;    // (n, dim) on the host
	std::vector<StepWeights> before; // steps in front of Step::Stack; the projector's are behind it
	std::vector<ConformerWeights> conformer;
};
// Throws Error{Format} if a tensor is missing or has another shape, Io, OutOfMemory.
AudioWeights load_audio(const Gguf&, AudioConfig&, Backend&);

} // namespace kvrun
