// A GGUF file of a made-up model that exists nowhere: its header is in memory, its weights are computed where they are
// read. Written to a disk, it is a model that other programs can run too.
#pragma once
#include "models/synth/shape.h"
#include <vector>

namespace kvrun {

class SynthFile {
 public:
	explicit SynthFile(const SynthSpec&);
	uint64_t bytes() const { return bytes_; }
	void read_at(uint64_t at, std::span<std::byte> dst) const;

 private:
	struct Tensor {
		uint64_t at, bytes; // in the file, without what pads it
		DType type;
		float deviation; // of the elements; 0: all are `value`
		float value;
		uint64_t stream;
	};
	void read_tensor(const Tensor&, uint64_t at, std::span<std::byte> dst) const;
	std::vector<std::byte> header_; // up to the first tensor
	std::vector<Tensor> tensors_;   // in the order of the file
	uint64_t bytes_ = 0;
};

} // namespace kvrun
