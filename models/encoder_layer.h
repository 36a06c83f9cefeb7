// Weights of the layers that encoders of images and of sounds have alike.
#pragma once
#include "models/encoder_tensors.h"

namespace kvrun {

// How a file has the tensors of a layer.
struct EncoderLayer {
	std::string prefix;       // of their names
	bool limited = false;     // projections have limits (Weights::limits)
	bool quarters = false;    // channels of q and k are paired as by PatchRotation::Quarters
	bool scales = false;      // outputs of attention and MLP have a factor per channel
	bool swapped_mlp = false; // old files have the names of ffn_up and ffn_down the wrong way round
};
// Layer l of the transformer. Throws as EncoderTensors does.
void load_encoder_layer(EncoderTensors&, const Config&, uint32_t l, const EncoderLayer&, LayerWeights& to);

} // namespace kvrun
