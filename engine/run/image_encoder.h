// Runs a vision encoder (models/vision.h) on a backend: a tile of an image becomes rows of the model's residual stream.
#pragma once
#include "models/vision_weights.h"

namespace kvrun {

class ImageEncoder {
 public:
	// The backend must outlive it. Throws as load_vision() does.
	ImageEncoder(Backend&, const Gguf&, VisionConfig);

	const VisionConfig& config() const { return config_; }
	size_t weight_bytes() const { return weights_.bytes; }
	// Multiplies and adds that a tile takes.
	double work(const Image& tile) const;
	// The rows of a tile, (config().rows(), out_dim) f32. Waits for the device. Memory is allocated for the call: about
	// ten rows of the widest layer per patch. Throws Error{OutOfMemory}; Device if the result is not finite.
	std::vector<float> encode(const Image& tile);

 private:
	struct Grid { // of patches
		uint32_t columns, rows;
		uint32_t n() const { return columns * rows; }
	};
	Grid grid_of(const Image&) const;
	std::vector<float> pixels(const Image&, Grid) const;
	std::vector<float> position_rows(Grid) const;
	std::vector<float> rotations(Grid) const;
	std::vector<float> transform(const Image&, Grid); // (patches, dim): behind the layers
	std::vector<float> merged(const std::vector<float>& patches, Grid) const;
	std::vector<float> project(const std::vector<float>& rows);
	void norm(const View& x, const NormWeights&, NormKind, float eps);

	Backend& be_;
	VisionConfig config_;
	VisionWeights weights_;
};

} // namespace kvrun
