// Which weights lie on the device and which in host memory, where the device reads them over the bus. Pure arithmetic
// on the list of tensors: the ones of which a token reads the smallest share leave the device first.
#pragma once
#include "models/config.h"
#include <functional>
#include <optional>

namespace kvrun {

// What a tensor is for; where two are read alike, the one of the smaller part leaves first.
enum class WeightPart : uint8_t {
	Embedding, // a row for each token
	Experts,   // those that a token chooses
	Mlp,       // of a layer, the MLP that all tokens take beside experts included
	Attention, // the rest of a layer
	Output,    // the output projection, or the embedding that it is, too
};
constexpr int kWeightParts = 5;

struct WeightGroup { // tensors that move together
	WeightPart part;
	uint32_t layer = 0;               // of a part of a layer
	uint64_t bytes = 0;               // of memory
	uint64_t token_bytes = 0;         // read for a token of a decode step
	std::vector<size_t> tensors = {}; // of tensor_specs()
	bool in_host = false;
};

struct WeightOptions {   // what a user asks; names as llama.cpp has them
	uint64_t budget = 0; // most bytes of weights on the device; 0: no limit
	std::optional<uint32_t> gpu_layers =
	    {};                      // the last so many layers stay, one more than the model has: the output, too
	uint32_t cpu_moe_layers = 0; // experts of the first so many layers lie in host memory
	bool fit = true;             // as much more as the context needs
	bool asked() const { return budget || gpu_layers || cpu_moe_layers; }
};

class WeightPlan {
 public:
	using RowBytes = std::function<size_t(DType, uint32_t cols)>; // of a matrix, on the device
	// All on the device.
	WeightPlan(const Gguf&, const Config&, const RowBytes&);
	WeightPlan(const Gguf&, const Config&); // with the rows of GPUs

	// Puts what gpu_layers and cpu_moe_layers name into host memory, then more until the budget is kept. Throws
	// Error{Invalid} where the budget is below what cannot leave the device.
	void apply(const WeightOptions&);
	// The next group leaves the device; false: all that can have left.
	bool move_next();

	uint64_t bytes() const { return bytes_; } // of all weights
	uint64_t host_bytes() const { return host_bytes_; }
	uint64_t device_bytes() const { return bytes_ - host_bytes_; }
	uint64_t fixed_bytes() const { return fixed_bytes_; } // norms, biases, routers: they stay on the device
	uint64_t host_token_bytes() const;                    // read of host memory for a token of a decode step
	uint64_t device_token_bytes() const;                  // and of the device's
	const std::vector<WeightGroup>& groups() const { return groups_; } // in the order in which they leave
	std::vector<bool> in_host() const;                                 // by tensor of tensor_specs()
	// "embedding, experts of 40 layers"; empty: nothing is in host memory.
	std::string host_text() const;

 private:
	void move(WeightGroup&);
	uint32_t n_layers_ = 0;
	size_t n_tensors_ = 0;
	uint64_t bytes_ = 0, host_bytes_ = 0, fixed_bytes_ = 0, fixed_token_bytes_ = 0;
	std::vector<WeightGroup> groups_;
};

} // namespace kvrun
