// Attention of a query over one layer of a sequence as it is: nothing is stored, and no score changes.
#pragma once
#include "engine/kv_device/read_plan.h"
#include "engine/kv_device/scratch.h"

namespace kvrun {

class KvLook {
 public:
	// One query row of n_heads at the next position, over layer l of the sequence, which must hold a token, fetch none
	// (KvSequence::fetch()) and stay as it is while the object is used. Uses scratch.step and scratch.parts. Throws
	// Error{OutOfMemory}.
	KvLook(Backend&, KvScratch&, KvSequence&, uint32_t l, uint32_t n_heads);
	void attend(const View& out, const View& q, const Softmax& = {}); // out, q (1, n_heads, head_dim) f32

 private:
	Backend& be_;
	KvScratch& scratch_;
	KvSequence& seq_;
	RowMasks masks_;
	ReadPlan read_;
	View parts_;
};

} // namespace kvrun
