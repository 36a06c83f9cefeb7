// One token set: the tier and slot of each token of a sequence, for the layers and heads that share it.
#pragma once
#include "engine/kv_host/counts.h"
#include "engine/kv_host/slot_positions.h"
#include <deque>
#include <span>

namespace kvrun {

struct SetMoves { // moves for a device after changes of a set, by logical page; page ids are added later, per layer
	struct Block {
		Tier tier;
		uint32_t head, src, n; // as KvBlockMove
		uint32_t block;        // index of the block in the tier
	};
	struct Run {
		Tier tier;
		uint32_t head, src, n; // as KvMove
		uint32_t page, slot;   // logical page, first slot in it
	};
	std::vector<uint32_t> sources, positions; // positions: of the sources, if the plan fetches
	std::vector<Block> blocks;
	std::vector<Run> packs, stores;
	void clear() { sources.clear(), positions.clear(), blocks.clear(), packs.clear(), stores.clear(); }
};

class BookWriter;
class BookReader;

// Between changes a set keeps compact data: a position and a score by f16 slot, and SlotPositions of packed tiers.
// Flushes work on lists, which are made from these data and stored back.
class TokenSet {
 public:
	// `head`: the kv head the set is for, or kAllHeads.
	TokenSet(const KvPlan& plan, uint32_t head);

	void clear() noexcept; // removes all tokens and pages

	// ---- scores: attention received, by f16 slot
	// score(slot) is called for every f16 slot.
	template <class F> void add_scores(F&& score) {
		for (uint32_t slot = 0; slot < score_.size(); ++slot) score_[slot] += score(slot);
	}
	void rows_unseen(uint32_t n_rows); // n_rows scored rows did not see the tokens in the set

	// ---- flushes and prompts: open(), the changes in the order of the FlushEvents, then store()
	struct Lists; // the tokens that are not packed
	Lists open() const;
	// Adds a token of a prompt, which is in the prompt's scratch until store() gives it an f16 slot.
	void add_scratch(Lists&, uint32_t pos, uint32_t index, uint32_t rows_before, double score) const;
	// scored_rows: rows that fed the score so far; a token's mean is over the rows from its own on. `moves` collects
	// the moves for a device.
	void flush(Lists&, const FlushEvent&, uint32_t scored_rows, SetMoves& moves);
	void store(Lists&&, SetMoves& moves);
	// All three in one call, for a decoded token.
	void flush(const FlushEvent&, uint32_t scored_rows, SetMoves& moves);

	// ---- other changes
	void grow_f16(uint32_t n_pages);                // ensures that there are at least n_pages f16 pages
	void drop_f16_pages(uint32_t n_pages) noexcept; // removes those from n_pages on, which are empty
	// Adds a new token directly to an f16 slot.
	void add(uint32_t pos, uint32_t rows_before);
	void remove_newest(uint32_t n) noexcept; // removes the newest n tokens, none of which has been judged

	// The state that a flush changes, and the ends of packed pages: restoring it needs no memory.
	struct Saved;
	Saved save() const;
	void restore(Saved&&) noexcept;

	// ---- in a file
	void write(BookWriter&) const;
	// Reads into an empty set. `counts`: of the cache, checked; page_block: page_block() of each tier. Throws
	// Error{Format}.
	void read(BookReader&, const KvCounts& counts, std::span<const std::vector<uint32_t>, kTiers> page_block,
	          uint32_t scored_rows);

	// ---- tiers and slots
	uint32_t n_pages(Tier t) const { return n_pages_[int(t)]; }
	std::span<const uint32_t> live(Tier t) const { return live_[int(t)]; } // (n_pages, 4) one bit per slot
	std::vector<uint32_t> positions(Tier) const;                           // (n_pages * page) kNone: empty
	uint32_t position(Tier, uint32_t slot) const;
	std::span<const uint32_t> page_block(Tier t) const { return block_[int(t)]; } // (n_pages) logical block; else empty
	uint32_t newest_slot() const { return newest_; }
	uint32_t n_from(uint32_t pos) const; // number of tokens at this position or after it
	// tier (n_tokens), by position: as in KvCache::tiers(); entries of evicted tokens are not changed.
	void mark_tiers(std::span<uint8_t> tier) const;

 private:
	struct Token {
		uint32_t pos;         // in the sequence
		uint32_t src;         // f16 slot, or kFromScratch | token of the prompt
		uint32_t rows_before; // scored rows before the token's own
		double score;         // attention received from scored rows
	};
	Token at_slot(uint32_t f16_slot) const;
	void close(const Lists&); // all tokens must have slots
	bool stays() const;       // better tokens stay in f16 and can be demoted
	double rank_score(const Token&, uint32_t scored_rows) const;
	void demote(const FlushEvent&, uint32_t scored_rows, SetMoves& moves);
	static void write_tokens(BookWriter&, const auto& tokens, bool ranked);
	void read_tokens(BookReader&, auto& tokens, uint32_t n, uint32_t first_pos, uint32_t end_pos, uint32_t scored_rows,
	                 std::vector<bool>& seen);
	void read_positions(BookReader&, int tier, const KvCounts&, std::vector<bool>& seen);
	void settle(std::vector<Token>& waiting, int tier, SetMoves& moves); // into pages, as the tier's Fill allows
	void write_run(int tier, const Token* first, uint32_t n, uint32_t page, uint32_t slot, SetMoves& moves);
	// Packs the first n tokens, after the last packed token.
	void write_pages(int tier, const Token* first, uint32_t n, SetMoves& moves);
	void append_page(int tier);
	void occupy(int tier, uint32_t slot, uint32_t pos);
	void release(uint32_t f16_slot) noexcept;
	uint32_t take_slot(); // the lowest free f16 slot
	SlotPositions& packed_pos(int tier) { return packed_pos_[tier - 1]; }
	const SlotPositions& packed_pos(int tier) const { return packed_pos_[tier - 1]; }

	const KvPlan* plan_;
	uint32_t head_;
	uint32_t n_pages_[kTiers] = {}, n_blocks_[kTiers] = {};
	uint32_t packed_[kTiers] = {}; // tokens in pages of Salient and Regular
	std::vector<uint32_t> live_[kTiers], block_[kTiers];
	SlotPositions packed_pos_[2];
	// ---- f16. Tokens before select.sinks are sinks; those from recent_from_ on are the window. Of the others, those
	// that do not wait for their group are kept.
	uint32_t recent_from_;
	uint32_t newest_ = kNone;               // slot of the newest token
	uint32_t free_from_ = 0;                // no f16 page before this one has a free slot
	std::vector<uint32_t> waiting_[kTiers]; // slots, oldest first
	std::vector<uint32_t> f16_pos_;         // (n_pages * page) kNone: empty
	std::vector<float> score_;              // (n_pages * page), for ranked plans
	std::vector<uint32_t> rows_before_;     // (n_pages * page), if scores are means
};

struct TokenSet::Lists { // oldest first
	std::vector<Token> sinks, kept, waiting[kTiers];
	std::deque<Token> recent;
	template <class F> void each(F&& f) { each_of(*this, f); }
	template <class F> void each(F&& f) const { each_of(*this, f); }

 private:
	static void each_of(auto& lists, auto& f) {
		for (auto* list : {&lists.sinks, &lists.kept, &lists.waiting[1], &lists.waiting[2]})
			for (auto& t : *list) f(t);
		for (auto& t : lists.recent) f(t);
	}
};

struct TokenSet::Saved {
	std::vector<uint32_t> waiting[kTiers], f16_live, f16_pos, rows_before;
	std::vector<float> score;
	SlotPositions::Saved packed_pos[2];
	uint32_t recent_from, newest, free_from;
	uint32_t n_pages[kTiers], n_blocks[kTiers], packed[kTiers];
};

} // namespace kvrun
