// Which class runs the layers that a config describes.
#include "engine/run/draft_kinds.h"
#include "engine/run/block_layers.h"
#include "engine/run/prediction_layer.h"

namespace kvrun {

std::unique_ptr<DraftLayers> make_draft_layers(Backend& be, const Gguf& g, Config c, const Weights& model,
                                               const LoadProgress& progress) {
	if (c.block.size) return std::make_unique<BlockLayers>(be, g, std::move(c), model, progress);
	return std::make_unique<PredictionLayer>(be, g, std::move(c), model, progress);
}

uint64_t draft_activation_bytes(const Config& c) {
	return c.block.size ? BlockLayers::activation_bytes(c) : PredictionLayer::activation_bytes(c);
}

} // namespace kvrun
