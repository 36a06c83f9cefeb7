// Which f16 tokens each row of one sequence sees in a step of several tokens: those up to its own.
#pragma once
#include "engine/kv_device/sequence.h"

namespace kvrun {

// Live bits of f16 pages without the tokens after a row's own, in the pool's tables.
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
	// Adds masks of the first n - 1 tokens of the sequence's step; the last token uses the sequence's own live bits.
	// Throws Error{OutOfMemory}.
	void add(Backend&, const KvSequence&, uint32_t n);
	// Mask of token i of the sequence; null for the last token of the step.
	const RowMask* of(const KvSequence&, uint32_t i) const;

 private:
	struct Range {
		const KvSequence* seq;
		uint32_t at, words;
		std::vector<RowMask> masks; // by token
	};
	KvPool& pool_;
	std::vector<Range> ranges_;
};

} // namespace kvrun
