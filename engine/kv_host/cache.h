// KvCache: slots, pages, live bits and positions of one sequence. Decides which moves are needed; does not carry them
// out. No Backend.
#pragma once
#include "engine/kv_host/plan.h"
#include <memory>
#include <span>

namespace kvrun {

class TokenSet;

struct PageCopy { // a page that was shared and is about to be written
	uint32_t layer;
	uint32_t from, to; // ids in the pool
	uint32_t words;
};

class KvCache {
 public:
	// `seed` decides the random probe rows. Plan and pool must outlive the cache.
	KvCache(const KvPlan&, PagePool&, uint64_t seed = 1);
	~KvCache();
	KvCache(KvCache&&) noexcept;
	KvCache& operator=(KvCache&&) noexcept;

	const KvPlan& plan() const;
	uint32_t n_tokens() const; // in the sequence, evicted ones included
	void reset() noexcept;     // forgets everything and returns all pages

	// A cache of its own for the same tokens in the same pages. A sequence that writes to a shared page gets a copy of
	// it first (copies()). Not while a prompt or a token is in progress.
	KvCache fork() const;
	// Largest n_tokens <= n to which truncate() can go back to the exact state at n_tokens. No token after that
	// position may have been judged, and none of their rows may have fed a score; else 0, which reset() reaches.
	uint32_t exact_position(uint32_t n) const;
	void truncate(uint32_t n_tokens); // to an exact position
	// Pages that begin_prompt() or begin_token() replaced because another sequence shares them. A device copies their
	// contents before anything else, even if the prompt or token is then cancelled.
	std::span<const PageCopy> copies() const;
	void copies_done(); // the device has made them

	// Tells the pool what n_new prompt tokens, in one piece or several, and a short answer will take.
	void reserve_hint(uint32_t n_new);
	// ---- a prompt of n_new tokens. Views do not change until end_prompt().
	// Reserves the pages of all layers. Throws Error{OutOfMemory} naming need, budget and a policy that fits; then
	// nothing has changed. `rows`: prompt rows (0-based, ascending) that feed the score, instead of the policy's
	// choice.
	void begin_prompt(uint32_t n_new, std::span<const uint32_t> rows = {});
	// Prompt rows whose attention feeds the score; all of 0 .. n_new - 1 for policies that score every row, none for
	// policies without scores.
	std::span<const uint32_t> probe_rows() const;
	// Moves for layer `l`, called once per layer in ascending order, after the layer's attention. If ranked by score:
	// new_scores (n_kv_heads, n_new) = attention each new token received from the probe rows, summed over the rows,
	// averaged over the query heads of a kv head; slot_scores (n_kv_heads, n_f16_slots()) the same for older tokens by
	// f16 slot, decode rows since the last flush included (empty: none). Other policies: both empty.
	const KvMoves& prompt_moves(uint32_t l, std::span<const float> new_scores = {},
	                            std::span<const float> slot_scores = {});
	void end_prompt();
	bool in_prompt() const; // begun, and neither ended nor cancelled
	void cancel_prompt();   // instead of end_prompt(): as if there had been no prompt; its pages are freed

	// ---- one decoded token, or several of which all but the first may be taken back
	// How many of the next n tokens one step can take: the next one, and those after it up to one that makes the window
	// flush or whose row feeds a score. truncate() can take these back. 1 if the plan fetches.
	uint32_t step_tokens(uint32_t n) const;
	bool flush_due() const;    // the next token makes the window flush
	bool wants_scores() const; // ... and the flush is judged by score: begin_token() needs scores, and the
	                           // device's sums restart from zero after it
	// Makes room for the next n tokens, n <= step_tokens(n), and places them; from here on they are live. slot_scores
	// (n_layers, n_kv_heads, n_f16_slots()) f32: attention received by the token in each f16 slot since the last flush
	// or prompt, averaged over the query heads of a kv head; only if wants_scores(). Throws OutOfMemory with nothing
	// changed.
	void begin_token(std::span<const float> slot_scores = {}, uint32_t n = 1);
	void end_token(); // the tokens and the flush are done
	void
	cancel_token(); // instead of end_token(): everything is as before begin_token(), if no move was carried out yet
	bool in_token() const; // begun and neither ended nor cancelled
	bool flushed() const;  // begin_token() made the window flush
	// Moves of the flush that begin_token() made, to do before the new token is stored; empty without a flush.
	const KvMoves& token_moves(uint32_t l);
	// f16 slot of token i of the step.
	uint32_t token_slot(uint32_t l, uint32_t head, uint32_t i = 0) const;
	// Number of f16 pages if token i of the step were its last.
	uint32_t token_f16_pages(uint32_t i) const;
	bool token_scores() const; // the attention of the row of the step's first token feeds the score

	// ---- what attention reads. Logical pages of a tier are numbered from 0; slot = logical page * page + index.
	uint32_t n_pages(uint32_t l, Tier) const;
	uint32_t n_f16_slots() const;                             // the same in all layers
	std::span<const uint32_t> pages(uint32_t l, Tier) const;  // ids in the pool, by logical page
	std::span<const uint32_t> blocks(uint32_t l, Tier) const; // block id of each logical page; empty: in pages
	std::span<const uint32_t> live(uint32_t l, Tier, uint32_t head) const;  // (n_pages, 4) one bit per token
	std::vector<uint32_t> positions(uint32_t l, Tier, uint32_t head) const; // (n_pages * page) kNone: empty slot
	uint32_t position(uint32_t l, Tier, uint32_t head, uint32_t slot) const;
	uint64_t version(uint32_t l, Tier) const; // changes with any change of the above
	uint64_t pages_version() const;           // changes when pages() or blocks() change other than by getting longer
	// By position, (n_tokens): 0 f16 (window, sinks, log survivors, waiting), 1 Salient, 2 Regular, 3 evicted.
	std::vector<uint8_t> tiers(uint32_t l, uint32_t head) const;

	KvBytes bytes() const; // of this sequence

	// ---- in a file: everything except the contents of pages. Not while a prompt or a token is in progress.
	std::vector<std::byte> save_books() const;
	// A cache from books that a cache of the same plan has saved, in new pages, which the caller fills. The bytes may
	// be arbitrary: throws Error{Format} naming the error in them, also if they are not of n_tokens tokens;
	// Error{OutOfMemory} if the pages do not fit.
	static KvCache load_books(const KvPlan&, PagePool&, uint64_t seed, std::span<const std::byte>, uint32_t n_tokens);

 private:
	struct State;
	std::unique_ptr<State> s_;
	const TokenSet& set(uint32_t l, uint32_t head) const;
};

} // namespace kvrun
