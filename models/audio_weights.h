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
struct Projection {
	View w, bias; // (rows, columns), (rows) f32; the bias may be empty
};
struct ConformerMlp {
	Projection up, down;
	NormWeights norm, post_norm;
};
struct ConformerWeights { // of a layer; norms may be empty
	ConformerMlp first, second;
	NormWeights attn_norm, attn_post_norm, conv_norm, conv_post_norm, out_norm;
	Projection q, k, v, out;   // (dim, dim)
	Projection widen, narrow;  // (2 * wide, dim), (dim, wide), around the convolution
	std::vector<float> kernel; // (wide, AudioConfig::kernel), on the host
	std::vector<float> shift;  // (wide): behind the convolution, likewise; may be empty
	std::vector<float> scale;  // (head_dim): of queries, likewise
	// Likewise, keys of distances. AudioLayers::Conformer: (12, dim), of 0 .. 11. Blocks: (head_dim, 2 * block - 1), of
	// block - 1 rows before down to as many behind.
	std::vector<float> places;
};
// Queries that see each other, then the rows of their window, then an MLP; each is followed by a norm of the sum.
struct QueryLayer {
	struct Attention {
		Projection q, k, v, out;
		NormWeights norm;
	} among, rows;
	Projection up, down;
	NormWeights norm;
};
struct WindowQueries {          // of AudioProjector::asked
	std::vector<float> queries; // (queries, dim) on the host
	NormWeights norm;
	std::vector<QueryLayer> layers;
};
struct AudioWeights : EncoderWeights {
	std::vector<ConvolutionWeights> convolutions;
	View in, in_bias;                // (dim, columns of the convolutions), (dim) f32; empty without
	std::vector<float> positions;    // (n, dim) on the host
	std::vector<StepWeights> before; // steps in front of Step::Stack; the projector's are behind it
	std::vector<ConformerWeights> conformer;
	// Of AudioLayers::Blocks: (characters, dim), (dim, characters), and zeros behind n_characters.
	Projection characters, of_characters;
	uint32_t n_characters = 0;
	WindowQueries asked;
};
// Throws Error{Format} if a tensor is missing or has another shape, Io, OutOfMemory.
AudioWeights load_audio(const Gguf&, AudioConfig&, Backend&);

} // namespace kvrun
