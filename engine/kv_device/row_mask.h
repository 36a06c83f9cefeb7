// Which f16 tokens a row of a sequence sees: those up to its own, and no more than a window has.
#pragma once
#include "engine/kv_device/sequence.h"

namespace kvrun {

// Live bits of f16 pages without the tokens that a row does not see, in the pool's tables.
struct RowMask {
	uint32_t n_pages;              // f16 pages of a layer that the row reads: those that exist without later tokens
	uint32_t at;                   // word of pool().tables(): (n_groups, n_heads, stride)
	uint32_t stride, group_stride; // words between kv heads, 0 where they share a set; between layers
	uint32_t live_word(uint32_t l, uint32_t page) const { return at + l * group_stride + page * 4; }
};

// Number of pages of a run that a row reads; without a mask (null), all of them.
uint32_t pages_seen(const PageRun&, const RowMask*);

// The masks of a step. They must live as long as the step, which reads them.
class RowMasks {
 public:
	explicit RowMasks(KvPool& pool) : pool_(pool) {}
	~RowMasks();
	RowMasks(const RowMasks&) = delete;
	// Adds masks of the n tokens of the sequence's step. causal: a token does not see later ones. Without a window a
	// token that sees all has none: it uses the sequence's own live bits. Throws Error{OutOfMemory}.
	void add(Backend&, const KvSequence&, uint32_t n, bool causal = true);
	// Adds the mask, if there is a window, of a row at the next position whose token is not cached.
	void add_next(Backend&, const KvSequence&);
	const RowMask* of(const KvSequence&, uint32_t i) const; // of token i; null: it sees all

 private:
	struct Range {
		const KvSequence* seq;
		uint32_t at, words;
		std::vector<RowMask> masks; // by token
	};
	void add(Backend&, const KvSequence&, std::span<const uint32_t> words, std::span<const uint32_t> n_pages);

	KvPool& pool_;
	std::vector<Range> ranges_;
};

} // namespace kvrun
