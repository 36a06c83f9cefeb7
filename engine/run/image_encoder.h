// Runs a vision encoder (models/vision.h) on a backend: a tile of an image becomes rows of the model's residual stream.
#pragma once
#include "engine/run/patch_positions.h"
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
	// The rows of a tile, (config().rows(), out_dim) f32, and in `deep` those of VisionConfig::deep. Waits for the
	// device. Memory is allocated for the call: about ten rows of the widest layer per patch. Throws
	// Error{OutOfMemory}; Device if a result is not finite.
	std::vector<float> encode(const Image& tile, std::vector<std::vector<float>>& deep);

 private:
	using Grid = PatchGrid;
	Grid grid_of(const Image&) const;
	// The order in which the layers have patches: windows one after the other (VisionConfig::window).
	struct Order {
		std::vector<uint32_t> patches; // (n)
		std::vector<uint32_t> begins;  // of windows, then n
	};
	Order order_of(Grid) const;
	std::vector<float> pixels(const Image&, Grid, const Order&) const;
	std::vector<float> added_rows(Grid, const Order&) const;
	// (patches, dim): behind the layers; `deep`: behind layers of VisionConfig::deep.
	std::vector<float> transform(const Image&, Grid, std::vector<std::vector<float>>& deep);
	std::vector<float> merged(const std::vector<float>& patches, Grid) const;
	std::vector<float> project(std::span<const StepWeights>, const std::vector<float>& rows);
	void norm(const View& x, const NormWeights&, NormKind, float eps);

	Backend& be_;
	VisionConfig config_;
	VisionWeights weights_;
};

} // namespace kvrun
