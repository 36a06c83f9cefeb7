// Runs a tile of an image through the layers of a vision encoder, one layer at a time.
#pragma once
#include "engine/run/patch_positions.h"
#include "engine/run/row_encoder.h"
#include "models/vision_weights.h"
#include <memory>

namespace kvrun {

class TileEncoder {
 public:
	// All but the image must outlive it. Throws Error{OutOfMemory}.
	TileEncoder(Backend&, const VisionConfig&, const VisionWeights&, const Image& tile,
	            uint32_t most_rows = RowEncoder::kRows);
	// Of device memory: 16 bytes per patch and channel, and activations of RowEncoder::kRows patches.
	static uint64_t bytes(const VisionConfig&, uint32_t patches);
	size_t bytes() const { return rows_->bytes(); }
	TileEncoder(const TileEncoder&) = delete; // views look at the buffer

	PatchGrid grid() const { return grid_; } // of what the next layer reads
	bool done() const { return layer_ == config_.transformer.n_layers; }
	// Runs the next layer. Waits for the device behind the last one, and behind layers of VisionConfig::deep.
	void step();
	// Once done: (patches, dim) in the image's order; and behind each layer of VisionConfig::deep.
	const std::vector<float>& patches() const { return patches_; }
	const std::vector<std::vector<float>>& deep() const { return deep_; }

 private:
	// The order in which the layers have patches: windows one after the other (VisionConfig::window).
	struct Order {
		std::vector<uint32_t> patches; // (n)
		std::vector<uint32_t> begins;  // of windows, then n
	};
	Order order_of() const;
	std::vector<float> pixels(const Image&) const;
	std::vector<float> added_rows() const;
	void embed(const std::vector<float>& pixels);
	void norm_pixels(std::span<float> of_patch) const;
	std::vector<float> read_patches();
	void merge_inner();
	void finish();

	Backend& be_;
	const VisionConfig& config_;
	const VisionWeights& weights_;
	PatchGrid grid_;
	uint32_t n_, all_; // patches; with the class tokens
	Order order_;
	std::unique_ptr<RowEncoder> rows_;
	uint32_t most_rows_;
	RowGroups all_rows_, windows_; // windows_: with VisionConfig::window_period
	uint32_t layer_ = 0;           // the next
	std::vector<float> patches_;
	std::vector<std::vector<float>> deep_;
};

PatchGrid grid_of(const VisionConfig&, const Image& tile);
// x becomes its norm; unchanged without weights.
void norm_rows(Backend&, const View& x, const NormWeights&, NormKind, float eps);

} // namespace kvrun
