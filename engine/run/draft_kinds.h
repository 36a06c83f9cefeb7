// Which class runs the layers that a config describes.
#pragma once
#include "engine/run/draft_layers.h"

namespace kvrun {

// c: read_prediction(), or read_draft_file() of what is no assistant.
std::unique_ptr<DraftLayers> make_draft_layers(Backend&, const Gguf&, Config c, const Weights& model,
                                               const LoadProgress& = {});
uint64_t draft_activation_bytes(const Config& c); // what prepare() allocates, caches apart

} // namespace kvrun
