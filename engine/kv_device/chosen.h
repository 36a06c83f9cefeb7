// Live bits of pages for rows that attend to the tokens that an indexer chooses. The device makes them for one layer
// after the other, from the choices of rows.
#pragma once
#include "engine/kv_device/sequence.h"
#include "engine/kv_device/step_table.h"

namespace kvrun {

struct RowChoice {   // of a row
	uint32_t at;     // word of pool().tables(): (n_heads, stride); pages numbered as PageRun counts
	uint32_t stride; // words between kv heads, 0 where they share a set and a choice
	uint32_t most;   // tokens that it attends to
	uint32_t live_word(uint32_t page) const { return at + page * 4; }
};

class RowChoices {
 public:
	explicit RowChoices(KvPool& pool) : pool_(pool) {}
	~RowChoices() { clear(); }
	RowChoices(const RowChoices&) = delete;
	void clear();
	// Takes memory for rows [first, first + n) of one sequence, whose tables are synced. Throws Error{OutOfMemory}.
	void add(const KvSequence&, uint32_t first, uint32_t n = 1);
	const RowChoice* of(uint32_t row) const; // null: it was not added; valid until the next add()
	bool empty() const { return rows_.empty(); }
	// Puts the work of layer l into the table; returns its first word.
	size_t plan(uint32_t l, StepTable&);
	// Enqueues it, before attention reads the bits. bits (rows * KvPlan::choices, words): as op::IndexPick makes them.
	void enqueue(Backend&, const View& bits, const Buffer& words, size_t at, uint32_t n_work) const;
	uint32_t n_work() const { return n_work_; } // of the latest plan()

 private:
	struct Row {
		const KvSequence* seq;
		uint32_t row;
		RowChoice choice;
	};
	struct Range { // of pool().tables()
		uint32_t at, words;
	};
	KvPool& pool_;
	std::vector<Row> rows_;
	std::vector<Range> ranges_;
	uint32_t n_work_ = 0;
};

} // namespace kvrun
