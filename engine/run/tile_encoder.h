// Runs a tile of an image through the layers of a vision encoder, one layer at a time.
#pragma once
#include "engine/run/layer_runner.h"
#include "engine/run/patch_positions.h"
#include "models/vision_weights.h"

namespace kvrun {

class TileEncoder {
 public:
	static constexpr uint32_t kRows = 1024; // patches that a projection or MLP takes at once
	// All but the image must outlive it. Throws Error{OutOfMemory}.
	TileEncoder(Backend&, const VisionConfig&, const VisionWeights&, const Image& tile, uint32_t most_rows = kRows);
	// Of device memory: 16 bytes per patch and channel, and activations of kRows patches.
	static uint64_t bytes(const VisionConfig&, uint32_t patches);
	size_t bytes() const { return memory_.bytes() + runner_.bytes(); }
	TileEncoder(const TileEncoder&) = delete; // views look at the buffer

	PatchGrid grid() const { return grid_; }
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
	std::vector<uint32_t> places(const std::vector<uint32_t>& begins) const;
	void embed(const std::vector<float>& pixels);
	LayerRows rows_of(uint32_t layer, uint32_t first) const; // of patches from `first` on
	std::vector<float> read_patches();

	Backend& be_;
	const VisionConfig& config_;
	const VisionWeights& weights_;
	const PatchGrid grid_;
	const uint32_t n_, all_;   // patches; with the class token
	const uint32_t most_rows_; // of them that a projection or MLP takes at once
	const Order order_;
	const std::vector<uint32_t> one_; // begins of a single window with all of them
	LayerRunner runner_;
	Buffer memory_;
	View x_, q_, att_; // (all, dim), (all, n_heads, head_dim) f32
	View ids_, rope_, k_, v_, at_, at_windows_;
	uint32_t layer_ = 0; // the next
	std::vector<float> patches_;
	std::vector<std::vector<float>> deep_;
};

PatchGrid grid_of(const VisionConfig&, const Image& tile);
// x becomes its norm; unchanged without weights.
void norm_rows(Backend&, const View& x, const NormWeights&, NormKind, float eps);
// Writes all of a view.
template <class T> void write_view(Backend& be, const View& to, const std::vector<T>& values) {
	be.write(*to.buf, to.at, std::as_bytes(std::span(values)));
}
std::vector<float> read_view(Backend&, const View&); // waits

} // namespace kvrun
