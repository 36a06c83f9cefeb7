// What a prompt overwrites of older tokens, kept until the prompt is done: one that is cancelled puts it back.
#pragma once
#include "engine/kv_device/move_plan.h"
#include <deque>

namespace kvrun {

// Pages are only ever added to by a prompt; f16 slots whose tokens leave the window are used again. So the tokens in
// slots that a layer's moves write to are all that must be kept, and the attention that f16 slots received so far.
class KvUndo {
 public:
	// Before the first layer of a prompt over older tokens.
	void begin(Backend&, const KvSequence&);
	// Before the moves of layer l, which are not enqueued yet. Where there is no memory for copies, restore() fails.
	void save(const KvSequence&, uint32_t l, const KvMoves&);
	// Puts back what was saved, and waits for it. Throws Error, also where something could not be saved.
	void restore(KvSequence&);

 private:
	struct Saved {            // of one layer
		Buffer memory, words; // keys, then values; destinations
		KvRows kv;            // (n_kv_heads, rows, head_dim)
		std::vector<ChunkRows> rows;
	};
	void save_slots(const KvSequence&, Saved&, std::span<const SlotCell>, uint32_t n_rows);

	Backend* be_ = nullptr;   // null: nothing to undo
	bool complete_ = true;    // nothing failed for want of memory
	std::deque<Saved> saved_; // views point at their buffers: they stay where they are
	Buffer sums_;
};

} // namespace kvrun
