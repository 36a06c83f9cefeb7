// Audio encoders: from a sound to rows of the model's residual stream, as llama.cpp's mmproj files describe them
// (architecture "clip", clip.has_audio_encoder). Convolutions shorten a spectrogram, a transformer reads what is left,
// a projector makes rows of the model of it.
#pragma once
#include "models/config.h"
#include "models/projection.h"
#include "models/spectrogram.h"

namespace kvrun {

// What shortens the spectrogram; each halves it, but for the first of a pair of Lines.
enum class Convolutions : uint8_t {
	None,
	Matrix, // none: a matrix reads the frames
	Lines,  // two along time, with GELU; frequencies are channels
	Planes, // three along time and frequencies, with GELU, then a matrix
	Normed, // two along time and frequencies, each with LayerNorm without a bias and ReLU, then a matrix
};
// The layers of the transformer.
enum class AudioLayers : uint8_t {
	None,
	Attention, // as a vision encoder's
	Conformer, // Gemma's: half an MLP, attention to a row and the 11 before it, a convolution, half an MLP
	// Granite's: the same, but rows see those of their block (AudioConfig::block), with keys of distances
	// (arXiv:1803.02155), and the convolution reads rows on both sides. Halfway, what a classifier of characters says
	// of a row is added to it.
	Blocks,
};

// What a projector type of the files means: a row of the table in audio.cpp.
struct AudioProjector {
	const char* name; // clip.audio.projector_type
	Features features = Features::Log10Mel;
	Convolutions convolutions = Convolutions::Lines;
	AudioLayers layers = AudioLayers::Attention;
	uint32_t piece = 3000; // frames that the encoder takes at once; longer sounds are cut
	bool apart = false;    // pieces have spectrograms as if they were sounds of their own
	bool whole = false;    // silence behind the sound fills its last piece, and becomes rows
	bool filled = false;   // silence behind the sound fills its last piece, and is seen; there are no rows of it
	bool rotated = false;  // neighbouring channels of the first half of a head are rotated; no positions are added
	bool bare = false;     // there are only frames within the sound, whose end is mirrored
	// Frames whose convolutions and positions begin anew; 0: those of a piece. Silence fills the last part if `alike`.
	uint32_t part = 0;
	bool alike = false;
	uint32_t seen = 0;  // parts whose rows see each other; 0: those of a piece
	uint32_t mean = 1;  // so many neighbouring rows become their mean; what is left over is dropped
	bool asked = false; // in front of the steps learned queries ask windows of rows (AudioConfig::window)
	Steps steps = {};
	float step_eps = 0; // of norms among them; 0: the transformer's
	// Texts around the rows of a sound, with control tokens.
	const char *begin = "", *end = "";
};
std::span<const AudioProjector> audio_projectors();

struct AudioConfig {
	const AudioProjector* projector = nullptr;
	uint32_t bins = 0;     // of the spectrogram
	uint32_t stack = 1;    // so many neighbouring rows become one, one behind the other; zeros fill the last one up
	uint32_t channels = 0; // of two-dimensional convolutions
	uint32_t out_dim = 0;  // channels of the model
	Config transformer;    // its layers, as LayerRunner runs them; no vocabulary
	bool limited = false;  // projections have limits (Weights::limits)
	uint32_t kernel = 0;   // of the Conformer's convolution
	uint32_t block = 0;    // rows that see each other
	uint32_t farthest = 0; // distance of which the file has keys; at least that of the rows of a block
	uint32_t window = 0, queries = 0, query_heads = 0; // rows of a window; what it becomes, and its heads of attention

	uint32_t joined_dim() const { return transformer.dim * stack; } // channels of what the projector reads
	// Of what comes out of the convolutions, for so many frames of a part.
	uint32_t shortened(uint32_t frames) const;
	uint32_t transformer_rows(uint32_t frames) const; // of a piece
	uint32_t rows(uint32_t frames) const;             // of the model, of a piece
	uint32_t part() const { return projector->part ? projector->part : projector->piece; }
};
bool has_audio(const Gguf&);
// The file's kind. Throws Error{Unsupported} if kvrun does not run it.
const AudioProjector& audio_projector_of(const Gguf&);
// Throws as audio_projector_of(); Error{Format} if the file is damaged or of another model.
AudioConfig read_audio(const Gguf&, const Config& model);

// What the encoder takes at once.
struct AudioPiece {
	Spectrogram spectrogram = {}; // may have more frames than the sound, for the convolutions
	uint32_t frames = 0;          // of the sound
	size_t bytes() const { return spectrogram.values.size() * sizeof(float); }
};
constexpr uint64_t kMostSamples = 2ull * 3600 * kSampleRate; // two hours
// samples: of kSampleRate, one channel. Throws Error{Invalid} if they are too few for a row or too many.
std::vector<AudioPiece> cut_audio(const AudioConfig&, std::span<const float> samples);
// Identifies a sound for an encoder.
uint64_t audio_hash(std::span<const float> samples, uint64_t encoder);

} // namespace kvrun
