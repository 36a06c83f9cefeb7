// A tile of an image or a piece of a sound on its way through its encoder.
#pragma once
#include <vector>

namespace kvrun {

struct TileRows {
	std::vector<float> rows;                   // (n, out_dim)
	std::vector<std::vector<float>> deep = {}; // the same for VisionConfig::deep
};

class EncoderRun {
 public:
	virtual ~EncoderRun() = default;
	virtual bool done() const = 0; // all layers
	virtual void step() = 0;       // runs the next layer
	// Once done. Waits for the device. Throws Error{Device} if a result is not finite.
	virtual TileRows finish() = 0;
};

} // namespace kvrun
