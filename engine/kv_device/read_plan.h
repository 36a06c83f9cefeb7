// What attention and scores read of one layer's pages, for the rows of any number of sequences: work lists built on the
// host, one group of work items - one dispatch - per format in use.
#pragma once
#include "engine/kv_device/row_mask.h"
#include "engine/kv_device/step_table.h"

namespace kvrun {

enum class Fetched : uint8_t { // what a row reads of what its sequence has fetched
	None,                      // nothing: the cache as it is
	Tokens,                    // fetched tokens, instead of their packed entries
	Speculative,               // and the speculative token, which is this row's own
};
struct ReadRows { // rows of q that all attend to the cache of one sequence, the whole of it without a mask
	const KvSequence* seq;
	uint32_t row, n; // rows row .. row + n - 1
	uint32_t piece;  // pages of a work item
	Fetched fetched = Fetched::None;
	const RowMask* mask = nullptr; // of a row that does not see the sequence's newest tokens
};

// Groups of work items, one dispatch each, whose words are in the step table.
template <class G> class GroupPlan {
 public:
	bool empty() const { return groups_.empty(); }

 protected:
	std::vector<G> groups_; // of the last build()
	uint32_t n_work_ = 0;
	size_t work_at_ = 0; // words in the step table
};

class ReadPlan : public GroupPlan<AttendGroup> {
 public:
	// Either every element of `rows` is one row, or there is one element. Each row gets `extra` partial states more, at
	// the end, without a work item behind them. All words go into the table.
	void build(uint32_t l, std::span<const ReadRows> rows, uint32_t extra, StepTable&);
	// What build() described, once the table's words are in `words`; valid until the next build().
	KvRead read(const KvPool&, const Buffer& words, const View& parts, uint32_t n_kv_heads) const;
	uint32_t n_parts() const { return n_parts_; }
	// Of a row: its parts, those of f16 pages first. Only of rows that were one each.
	ShareWork share_of(uint32_t row) const { return shares_[row]; }

 private:
	struct Group {
		AttendGroup args;
		PageChunks chunk;
		std::vector<AttendWork> work;
	};
	Group& group_of(const KvSequence&, uint32_t l, const PageRun&);
	void add_run(const ReadRows&, uint32_t l, const PageRun&, AttendWork first, uint32_t& part);
	void add_fetched(const ReadRows&, uint32_t l, uint32_t& part);

	std::vector<Group> open_;       // by format and chunks, in the order of first use
	std::vector<ShareWork> shares_; // by row
	uint32_t n_rows_ = 0, n_parts_ = 0;
	uint32_t item_rows_ = 1, part_step_ = 0;
	uint32_t most_parts_ = 0; // of a row; 0: some row has parts without a work item, or none
	size_t row_parts_at_ = 0; // words in the step table
};

// The packed pages that speculative rows weigh, and what they have fetched.
struct WeighRows {
	const KvSequence* seq;
	uint32_t row, piece;
	uint32_t weights; // first word: (n_kv_heads, n_weights())
	bool masked;      // what is fetched is weighed instead of its packed entries
};
class WeighPlan : public GroupPlan<WeighGroup> {
 public:
	void build(uint32_t l, std::span<const WeighRows> rows, StepTable&);
	WeighArgs read(const KvPool&, const Buffer& words, const View& weight, uint32_t n_kv_heads) const;
};

// The f16 pages whose tokens are scored, each sequence's against some rows.
struct ScoreRows {
	const KvSequence* seq;
	uint32_t first, n; // ScoreArgs::rows[first .. first + n)
	uint32_t piece;    // pages of a work item
	const RowMask* mask = nullptr;
};
class ScorePlan : public GroupPlan<ScoreGroup> {
 public:
	void build(uint32_t l, std::span<const ScoreRows> rows, StepTable&);
	// rows: (n) u32, what `first` and `n` count in.
	ScoreArgs read(const KvPool&, const Buffer& words, const View& rows, uint32_t n_kv_heads) const;
};

} // namespace kvrun
