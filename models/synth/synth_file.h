// A GGUF file of a synthetic model. Its header is in memory, and its weights are computed when they are read. Written
// to a disk, it can be run by other programs.
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
		uint64_t at, bytes; // in the file, without padding
		DType type;
		float deviation; // of the elements; 0: all are `value`
		float value;
		uint64_t stream;
	};
	void read_tensor(const Tensor&, uint64_t at, std::span<std::byte> dst) const;
	std::vector<std::byte> header_; // bytes before the first tensor
	std::vector<Tensor> tensors_;   // in file order
	uint64_t bytes_ = 0;
};

} // namespace kvrun
