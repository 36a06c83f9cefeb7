// Plans which pages of one layer attention and scores read, for rows of any number of sequences. Work lists are built
// on the host; each format in use has one group of work items, which is one dispatch.
#pragma once
#include "engine/kv_device/chosen.h"
#include "engine/kv_device/row_mask.h"
#include "engine/kv_device/step_table.h"

namespace kvrun {

enum class Fetched : uint8_t { // which fetched tokens of its sequence a row reads
	None,                      // none; reads the cache unchanged
	Tokens,                    // fetched tokens, instead of their packed entries
	Speculative,               // also the speculative token, which is this row's own
};
struct ReadRows { // rows of q that attend to the cache of one sequence; without a mask, to all of it
	const KvSequence* seq;
	uint32_t row, n; // rows row .. row + n - 1
	uint32_t piece;  // pages of a work item
	Fetched fetched = Fetched::None;
	const RowMask* mask = nullptr;     // set for a row that does not see the sequence's newest tokens
	const RowChoice* choice = nullptr; // set for a row that attends to chosen tokens
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
	// `rows`: every element is one row, or there is only one element. Each row gets `extra` more partial states at its
	// end that no work item writes. Writes all words into the table.
	void build(uint32_t l, std::span<const ReadRows> rows, uint32_t extra, StepTable&);
	// Arguments of attention after build(); `words` must have the table's words. Valid until the next build().
	KvRead read(const KvPool&, const Buffer& words, const View& parts, uint32_t n_kv_heads) const;
	// In place of build(), for unpack_latents(): all cached tokens of a layer, tier by tier in the order of slots,
	// become rows 0, 1, .. Returns their number.
	uint32_t build_rows(uint32_t l, const KvSequence&, StepTable&);
	uint32_t n_parts() const { return n_parts_; }
	// Parts of a row, those of f16 pages first. Only if every element of `rows` was one row.
	ShareWork share_of(uint32_t row) const { return shares_[row]; }

 private:
	struct Group {
		AttendGroup args;
		PageChunks chunk;
		std::vector<AttendWork> work;
	};
	Group& group_of(const KvSequence&, uint32_t l, const PageRun&, bool sparse);
	void add_run(const ReadRows&, uint32_t l, const PageRun&, AttendWork first, uint32_t& part);
	void add_fetched(const ReadRows&, uint32_t l, uint32_t& part);

	std::vector<Group> open_;       // by format, chunks and sparseness, in the order of first use
	std::vector<ShareWork> shares_; // by row
	uint32_t n_rows_ = 0, n_parts_ = 0;
	uint32_t item_rows_ = 1, part_step_ = 0;
	uint32_t most_parts_ = 0; // most parts of a row; 0 if some row has none, or has parts without a work item
	size_t row_parts_at_ = 0; // words in the step table
};

// The packed pages that speculative rows weigh, and their fetched tokens.
struct WeighRows {
	const KvSequence* seq;
	uint32_t row, piece;
	uint32_t weights; // first word: (n_kv_heads, n_weights())
	bool masked;      // fetched tokens are weighed instead of their packed entries
};
class WeighPlan : public GroupPlan<WeighGroup> {
 public:
	void build(uint32_t l, std::span<const WeighRows> rows, StepTable&);
	WeighArgs read(const KvPool&, const Buffer& words, const View& weight, uint32_t n_kv_heads) const;
};

// The f16 pages whose tokens are scored; each sequence's pages against some rows.
struct ScoreRows {
	const KvSequence* seq;
	uint32_t first, n; // ScoreArgs::rows[first .. first + n)
	uint32_t piece;    // pages of a work item
	const RowMask* mask = nullptr;
	const RowChoice* choice = nullptr;
};
class ScorePlan : public GroupPlan<ScoreGroup> {
 public:
	void build(uint32_t l, std::span<const ScoreRows> rows, StepTable&);
	// rows: (n) u32, the list that `first` and `n` index.
	ScoreArgs read(const KvPool&, const Buffer& words, const View& rows, uint32_t n_kv_heads) const;
};

} // namespace kvrun
