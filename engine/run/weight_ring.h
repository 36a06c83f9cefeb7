// Weights in host memory, copied to the device layer by layer while a prompt is read.
//
// A kernel of a prompt reads a weight once for each tile of rows, and each slice of a prompt (-ub) has its own kernels.
// In place, all of these reads go over the bus: a block of 4096 rows in tiles of 128 reads the bytes of a dense weight
// 32 times. A copy takes them over the bus once; the kernels then read them from device memory, which is ten times as
// fast. The copy of a layer runs on the queue for copies while the layer before it computes. Where there is no such
// queue (CUDA: one stream) it is in order with ops, and the bytes are still taken once.
#pragma once
#include "backends/backend.h"
#include "models/weight_plan.h"
#include "models/weights.h"
#include <optional>

namespace kvrun {

// How often the kernels of a block of `rows` rows, in slices of `ubatch`, read the bytes of a dense weight of a layer,
// and those of its experts: each expert that a slice chooses, once for each tile of rows that chose it.
struct BlockReads {
	double dense = 0, experts = 0;
};
BlockReads block_reads(const Experts&, uint32_t rows, uint32_t ubatch);

class WeightRing {
 public:
	static constexpr uint32_t kNoLayer = UINT32_MAX;
	// Takes the memory of the plan; of several devices, each has its share of the slots. If the device has no room for
	// it, or the plan has no ring, weights are read in place. Backend, config and weights must outlive the ring.
	WeightRing(Backend&, const Config&, const Weights&, RingSize);
	size_t bytes() const;
	bool usable() const { return !slots_.empty() && !taken_; }

 private:
	friend class RingPass;
	struct Slot {
		Buffer memory;             // Mem::Arrival
		uint32_t part = 0;         // device whose layers it takes
		uint64_t copy = 0;         // last transfer into it; 0: it was in order with ops
		uint64_t readers = 0;      // mark behind the last ops that read it
		uint32_t layer = kNoLayer; // that it holds, or is about to; kNoLayer: its memory may be used
		bool under_way = false;    // the copy has begun, and ops have not waited for it
		LayerWeights weights = {}; // of that layer: what was copied, and the rest where it lies
	};
	Backend& be_;
	const Config& cfg_;
	const Weights& weights_;
	std::vector<Slot> slots_;
	bool taken_ = false; // by a RingPass
};

// One prompt block's way through the layers. Without a usable ring, and for layers whose copy would not pay, all
// weights are read in place. The bits are the same.
class RingPass {
 public:
	// whole_layers: those of which all parts compute all rows of the block. Ops of the block, such as its embeddings,
	// have been enqueued.
	RingPass(WeightRing&, uint32_t rows, uint32_t ubatch, const std::vector<bool>& whole_layers);
	~RingPass();
	RingPass(const RingPass&) = delete;

	// Before each piece of a layer: ops enqueued from here on see its copy. Null: all of it is read where it lies.
	const LayerWeights* enter(uint32_t l);
	void leave(uint32_t l); // after the last piece of layer l
	void ahead(uint32_t l); // after each piece of layer l: begins the copy of the next one

 private:
	std::vector<size_t> views_to_copy(uint32_t l) const;
	WeightRing::Slot* slot_of(uint32_t l) const;
	void begin_from(uint32_t l);
	void begin(WeightRing::Slot&, uint32_t l);
	static constexpr uint32_t kNoLayer = WeightRing::kNoLayer;
	WeightRing& ring_;
	uint32_t rows_, ubatch_;
	std::vector<bool> copied_; // by layer
	bool active_ = false;
	std::vector<uint32_t> next_; // by device: slot of the next copy, among its own
};

} // namespace kvrun
