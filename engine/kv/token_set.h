// One token set: which token of a sequence is in which slot of which tier, for the layers and heads that share it.
#pragma once
#include "engine/kv/counts.h"
#include <deque>
#include <span>

namespace kvrun {

struct SetMoves { // what a set's changes ask of a device, by logical page; page ids come later, per layer
	struct Block {
		Tier tier;
		uint32_t head, src, n; // as KvBlockMove
		uint32_t block;        // logical: the how-many-eth block of the tier
	};
	struct Run {
		Tier tier;
		uint32_t head, src, n; // as KvMove
		uint32_t page, slot;   // logical page, first slot in it
	};
	std::vector<uint32_t> sources, positions; // positions: of the sources, where the plan fetches
	std::vector<Block> blocks;
	std::vector<Run> packs, stores;
	void clear() { sources.clear(), positions.clear(), blocks.clear(), packs.clear(), stores.clear(); }
};

class BookWriter;
class BookReader;

class TokenSet {
 public:
	// `head`: the kv head the set is for, or kAllHeads.
	TokenSet(const KvPlan& plan, uint32_t head) : plan_(&plan), head_(head) {}

	void clear() noexcept; // forgets all tokens and pages

	// ---- scores: attention received, by f16 slot or by token of the prompt
	// score(slot) is called for every token in an f16 slot.
	template <class F> void add_scores(F&& score) {
		each_f16([&](Token& t) {
			if (!(t.src & kFromScratch)) t.score += score(t.src);
		});
	}
	void rows_unseen(uint32_t n_rows); // n_rows scored rows did not look at the tokens that are here

	// ---- changes, each in the order FlushEvents say; `moves` collects what a device has to do
	// scored_rows: rows that fed the score so far; a token's mean is over those from its own row on.
	void flush(const FlushEvent&, uint32_t scored_rows, SetMoves& moves);
	// A new token that is in the prompt's scratch until store() finds it a slot.
	void add_scratch(uint32_t pos, uint32_t index, uint32_t rows_before, double score);
	void store(SetMoves& moves);
	// A new token straight into an f16 slot, which is returned.
	uint32_t add(uint32_t pos, uint32_t rows_before);
	// Takes back the newest n tokens, none of which has been judged, and the f16 pages beyond n_pages, which are empty
	// then.
	void remove_newest(uint32_t n, uint32_t n_pages);
	void grow_f16(uint32_t n_pages); // there are n_pages f16 pages from now on

	// What a flush changes of tokens in f16, and how far packed pages reach: enough to take the flush back.
	struct Saved;
	Saved save() const;
	void restore(Saved&&);

	// ---- in a file
	void write(BookWriter&) const;
	// Into an empty set. `counts`: of the cache, checked; page_block: page_block() of each tier. Throws Error{Format}.
	void read(BookReader&, const KvCounts& counts, std::span<const std::vector<uint32_t>, kTiers> page_block,
	          uint32_t scored_rows);

	// ---- what is where
	uint32_t n_pages(Tier t) const { return n_pages_[int(t)]; }
	std::span<const uint32_t> live(Tier t) const { return live_[int(t)]; }        // (n_pages, 4) one bit per slot
	std::span<const uint32_t> positions(Tier t) const { return pos_[int(t)]; }    // (n_pages * page) kNone: empty
	std::span<const uint32_t> page_block(Tier t) const { return block_[int(t)]; } // (n_pages) logical block; else empty
	uint32_t newest_slot() const;
	bool ends_with(uint32_t pos) const; // the newest token is the one at this position
	bool is_kept(uint32_t pos) const;   // by a flush, in f16

 private:
	struct Token {
		uint32_t pos;         // in the sequence
		uint32_t src;         // f16 slot, or kFromScratch | token of the prompt
		uint32_t rows_before; // scored rows before the token's own
		double score;         // attention received from scored rows
	};
	static void write_tokens(BookWriter&, const auto& tokens, bool ranked);
	void read_tokens(BookReader&, auto& tokens, uint32_t n, const KvCounts&, uint32_t scored_rows,
	                 std::vector<bool>& seen);
	void read_positions(BookReader&, int tier, const KvCounts&, std::vector<bool>& seen);
	template <class F> void each_f16(F&& f) {
		for (auto* list : {&sinks_, &kept_, &waiting_[1], &waiting_[2]})
			for (Token& t : *list) f(t);
		for (Token& t : recent_) f(t);
	}
	void enter(Token t);                    // into sinks or the window
	void settle(int tier, SetMoves& moves); // waiting tokens into pages, as the tier's fill allows
	void write_run(int tier, const Token* first, uint32_t n, uint32_t page, uint32_t slot, SetMoves& moves);
	void write_pages(int tier, uint32_t n, SetMoves& moves); // the first n waiting tokens, from the end of the pages on
	void append_page(int tier);
	void occupy(int tier, uint32_t slot, uint32_t pos);
	void release(const Token&);            // its f16 slot, if it has one
	uint32_t take_slot();                  // the lowest free f16 slot
	void drop_f16_pages(uint32_t n_pages); // those from n_pages on

	const KvPlan* plan_;
	uint32_t head_;
	std::vector<Token> sinks_, kept_, waiting_[kTiers]; // oldest first
	std::deque<Token> recent_;                          // oldest first
	std::vector<uint32_t> free_;                        // min-heap of free f16 slots
	uint32_t n_pages_[kTiers] = {}, n_blocks_[kTiers] = {};
	uint32_t packed_[kTiers] = {}; // tokens in pages of Salient and Regular
	std::vector<uint32_t> live_[kTiers], pos_[kTiers], block_[kTiers];
};

struct TokenSet::Saved {
	std::vector<Token> sinks, kept, waiting[kTiers];
	std::deque<Token> recent;
	std::vector<uint32_t> free, f16_live, f16_pos;
	uint32_t n_pages[kTiers], n_blocks[kTiers], packed[kTiers];
};

} // namespace kvrun
