// Which weights lie on the device and which in host memory, where the device reads them over the bus. The plan needs
// only the list of tensors: those of which a token reads the smallest share leave the device first.
#pragma once
#include "models/config.h"
#include <functional>
#include <optional>

namespace kvrun {

// Role of a tensor. Of two tensors with equal shares, the one with the smaller part leaves first.
enum class WeightPart : uint8_t {
	Embedding, // a token reads one row
	Experts,   // a token reads the experts it uses
	Mlp,       // of a layer, including the shared MLP beside experts
	Attention, // the rest of a layer
	Output,    // the output projection, also if it is the embedding
};
constexpr int kWeightParts = 5;

struct WeightGroup { // tensors that move together
	WeightPart part;
	uint32_t layer = 0;                      // if the part belongs to a layer
	uint64_t bytes = 0;                      // in memory
	uint64_t token_bytes = 0;                // read for a token of a decode step
	std::vector<size_t> tensors = {};        // indices into tensor_specs()
	std::vector<uint64_t> tensor_bytes = {}; // of each of them
	bool in_host = false;
};

struct WeightOptions {                       // options of the user, named as in llama.cpp
	uint64_t budget = 0;                     // limit of weights on the device, in bytes; 0: none
	std::optional<uint32_t> gpu_layers = {}; // so many last layers stay on the device; n_layers + 1: the output too
	uint32_t cpu_moe_layers = 0;             // experts of the first so many layers lie in host memory
	bool fit = true;                         // move more weights to host memory if the context needs the room
	double ring = 1. / 8;                    // prompts copy weights from there; see RingSize
	double host_share = 0;                   // at least this share of all bytes leaves the device, for measurements
	bool asked() const { return budget || gpu_layers || cpu_moe_layers || host_share > 0; }
};

constexpr uint64_t kRingAlign = 256; // of a weight in the ring
// Device memory through which prompts copy the layers whose weights lie in host memory (engine/run/weight_ring.h):
// slots for one layer each. What of a layer does not fit a slot is read in place. The ring takes memory that weights
// could have: at most WeightOptions::ring of what is in host memory, so that a decode step reads about an eighth more
// over the bus at most.
struct RingSize {
	uint64_t slot_bytes = 0;
	uint32_t slots = 0;
	uint64_t bytes() const { return slot_bytes * slots; }
};

class WeightPlan {
 public:
	using RowBytes = std::function<size_t(DType, uint32_t cols)>; // of a matrix on the device
	// Begins with all weights on the device.
	WeightPlan(const Gguf&, const Config&, const RowBytes&);
	WeightPlan(const Gguf&, const Config&); // with row sizes of GPUs

	// Moves what gpu_layers and cpu_moe_layers name to host memory, then more groups until the budget is kept. Throws
	// Error{Invalid} if the budget is too small for the weights that cannot leave the device.
	void apply(const WeightOptions&);
	// Moves the next group to host memory; false: none is left to move.
	bool move_next();

	uint64_t bytes() const { return bytes_; } // of all weights
	uint64_t host_bytes() const { return host_bytes_; }
	uint64_t device_bytes() const { return bytes_ - host_bytes_; }
	uint64_t fixed_bytes() const { return fixed_bytes_; } // norms, biases, routers: they stay on the device
	uint64_t host_token_bytes() const;                    // read from host memory per token of a decode step
	uint64_t device_token_bytes() const;                  // read from device memory
	// The ring of at most so many bytes for what is in host memory now: two slots, so that one is filled while the
	// other is read; one where nothing would fit half of the bytes; none where nothing fits.
	RingSize ring_within(uint64_t most) const;
	void set_ring(RingSize r) { ring_ = r; }
	const RingSize& ring() const { return ring_; }                     // that the engine takes memory for
	const std::vector<WeightGroup>& groups() const { return groups_; } // in the order of leaving
	std::vector<bool> in_host() const;                                 // per tensor of tensor_specs()
	// For example "embedding, experts of 40 layers"; empty: nothing is in host memory.
	std::string host_text() const;

 private:
	void move(WeightGroup&);
	uint32_t n_layers_ = 0;
	size_t n_tensors_ = 0;
	RingSize ring_;
	uint64_t bytes_ = 0, host_bytes_ = 0, fixed_bytes_ = 0, fixed_token_bytes_ = 0;
	std::vector<WeightGroup> groups_;
};

} // namespace kvrun
