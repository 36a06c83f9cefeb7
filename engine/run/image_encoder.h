// Runs a vision encoder (models/vision.h) on a backend: a tile of an image becomes rows of the model's residual stream.
#pragma once
#include "engine/run/encoder_run.h"
#include "engine/run/tile_encoder.h"
#include <memory>

namespace kvrun {

class ImageEncoder {
 public:
	// The backend must outlive it. Throws as load_vision() does.
	ImageEncoder(Backend&, const Gguf&, VisionConfig);

	const VisionConfig& config() const { return config_; }
	size_t weight_bytes() const { return weights_.bytes; }
	// Multiplies and adds that a tile takes.
	double work(const Image& tile) const;
	// Begins a tile. Throws as TileEncoder does.
	std::unique_ptr<TileEncoder> begin(const Image& tile, uint32_t most_rows = RowEncoder::kRows);
	// The rows of a tile that is done. Waits for the device. Throws Error{Device} if a result is not finite.
	TileRows finish(const TileEncoder&);
	TileRows encode(const Image& tile); // all of it

 private:
	std::vector<float> merged(const std::vector<float>& patches, PatchGrid) const;
	// Projected rows (n, out_dim) of so many per line, with those that join them.
	std::vector<float> joined(const std::vector<float>& rows, uint32_t line) const;

	Backend& be_;
	VisionConfig config_;
	VisionWeights weights_;
	std::vector<float> line_end_, first_, last_; // (out_dim), or empty: rows that join, behind the projector
};

} // namespace kvrun
