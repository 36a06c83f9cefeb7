// Copies of older tokens that a prompt overwrites, kept until the prompt is done; a cancelled prompt restores them.
#pragma once
#include "engine/kv_device/move_plan.h"
#include <deque>

namespace kvrun {

// A prompt only adds to pages, but it reuses f16 slots whose tokens leave the window. So only the tokens in slots that
// a layer's moves write to must be kept, and the attention that f16 slots received so far.
class KvUndo {
 public:
	// Call before the first layer of a prompt over older tokens.
	void begin(Backend&, const KvSequence&);
	// Call before the moves of layer l are enqueued. If there is no memory for copies, restore() fails later.
	void save(const KvSequence&, uint32_t l, const KvMoves&);
	// Restores what was saved, and waits for it. Throws Error, also if something could not be saved.
	void restore(KvSequence&);

 private:
	struct Saved {            // of one layer
		Buffer memory, words; // keys, then values; destinations
		KvRows kv;            // (n_kv_heads, rows, head_dim)
		std::vector<ChunkRows> rows;
	};
	void save_slots(const KvSequence&, Saved&, std::span<const SlotCell>, uint32_t n_rows);

	Backend* be_ = nullptr;   // null: nothing to undo
	bool complete_ = true;    // false once saving ran out of memory
	std::deque<Saved> saved_; // deque: views point at the buffers, so elements must not move
	Buffer sums_;
};

} // namespace kvrun
