// A sequence of tokens under one policy, and decode steps of several sequences.
#pragma once
#include "engine/run/engine.h"
#include "engine/run/positions.h"
#include "engine/run/prefill.h"
#include <memory>

namespace kvrun {

// In a history, neither tokens of the vocabulary: noise, and rows of images (is_image_row()).
constexpr uint32_t kNoToken = UINT32_MAX;

struct SessionOptions {
	KvPolicy kv = {};         // how the cache is stored
	uint32_t ctx = 0;         // longest sequence in tokens; 0: what fits the cache's budget, up to the trained context
	uint64_t seed = 1;        // for the policy's random choices
	uint32_t checkpoints = 0; // most states kept for truncate(), one at the end of each prompt
};

// Must end before its engine. Sessions of one engine share its memory budget, whatever their policies. What a session
// computes is bit-identical whatever other sessions run.
class Session {
 public:
	// Throws Error{Invalid} on a policy that this model's cache cannot use, OutOfMemory if not even one token fits.
	Session(Engine&, const SessionOptions& = {});
	~Session();
	Session(const Session&) = delete;

	// Appends tokens; returns the last one's logits (vocab), valid until the next call; empty if the hook cancelled.
	// Throws Error{Context} if they do not fit, Error{OutOfMemory} if the cache's budget is used up. To read a prompt
	// in pieces, use class Prefill.
	std::span<const float> prefill(std::span<const uint32_t> tokens, const PrefillHooks& = {});
	// Appends one token; returns its logits (vocab). Like decode() below.
	std::span<const float> decode(uint32_t token);

	// Returns an independent session with the same tokens. Packed pages are shared until either session writes to
	// them. Throws Error{OutOfMemory}. Logits after the same tokens are bit-identical in both.
	std::unique_ptr<Session> fork();
	// Takes the tokens and pages of a session that this one is a fork of, or that is a fork of this one, as fork()
	// does. Drops its own tokens and checkpoints. Throws Error{Invalid} if they are not related; OutOfMemory.
	void take_fork(Session& other);
	// Removes all tokens from position n_tokens on. This is bit-exact where nothing after that position was ranked or
	// compressed, and at checkpoints. exact_position(n) is the nearest such position at or before n (0 always is one);
	// the rest can be read again from there. Throws Error{Invalid} naming it if n_tokens is not exact.
	void truncate(uint32_t n_tokens);
	uint32_t exact_position(uint32_t n) const;
	// Goes back to the nearest position up to which the session equals `tokens`, leaving at least one to be read.
	// Returns how many of `tokens` the session then holds.
	uint32_t keep_common(std::span<const uint32_t> tokens);
	void reset(); // removes all tokens
	// How many of the next n tokens one decode step can take such that truncate() can remove all but the first; fewer
	// where the policy packs in between or ranks by a row's attention.
	uint32_t step_tokens(uint32_t n) const;
	void keep_drafts(); // drafts of the latest step stay: frees what truncate() would need to take them back
	std::string why_one_token() const; // why step_tokens() is never more than one; empty if it can be

	uint32_t n_tokens() const { return seqs_.main->n_tokens(); }
	std::span<const uint32_t> history() const { return history_; }   // (n_tokens) the tokens
	uint32_t ctx() const { return ctx_; }                            // longest sequence in tokens
	bool ctx_by_budget() const { return ctx_by_budget_; }            // whether the budget, not the model, limits ctx()
	const KvPlan& plan() const { return *plan_; }                    // of the main cache (CacheLayers)
	const KvPlan* window_plan() const { return window_plan_.get(); } // of the other cache; null if absent
	// Of the cache that the policy applies to.
	const KvPlan& policy_plan() const { return entry_plans_.empty() ? *plan_ : *entry_plans_[0]; }
	const std::string& policy_text() const { return options_.kv.text; }
	uint64_t seed() const { return options_.seed; }
	KvBytes kv_bytes() const; // of this session, shared pages included
	// Bytes that f16 would take for all layers.
	size_t f16_bytes() const;
	// KvCache::tiers() of a layer of the model, by position.
	std::vector<uint8_t> tiers(uint32_t layer, uint32_t kv_head) const;
	bool flush_due() const; // the next token makes a cache flush, which no truncate() takes back
	// Device memory allocated for the cache: the pool's, which serves all sessions, tables included.
	size_t kv_device_bytes() const { return engine_.pool().allocated_bytes(); }
	Engine& engine() const { return engine_; }
	KvSequence& seq() { return *seqs_.main; } // of the main cache
	const KvSequence& seq() const { return *seqs_.main; }
	KvSequence* window_seq() const { return seqs_.window.get(); } // of layers with a window; null: no such cache
	IndexSequence* index() const { return seqs_.index.get(); }    // null: the model has no indexer, or it is not used
	StateSequence* states() const { return seqs_.states.get(); }  // of recurrent layers; null if the model has none
	// Of entries of blocks, by CacheLayers::blocks(); empty if the model has none.
	std::span<const std::unique_ptr<KvSequence>> entries() const { return seqs_.entries; }
	// Of the engine's adapters, with which its tokens were read.
	std::span<const float> lora_scales() const { return n_tokens() ? lora_scales_ : engine_.lora_scales(); }
	void check_scales() const;                // throws Error{Invalid} if the engine has others now
	Window window() const { return window_; } // of the main cache's layers, if the context is longer
	uint32_t prompt_rows() const;             // rows of keys and values that a prompt needs in addition to its own
	uint32_t entry_rows() const;              // the same of entries of blocks
	void reserve_hint(uint32_t n_new);        // KvCache::reserve_hint() of all caches
	const RopeTables& rope() const { return *rope_; }
	// Of tokens that come next: those of a prompt, or a token of the vocabulary.
	std::vector<Position> positions(std::span<const uint32_t> tokens);
	uint32_t next_position() { return positions_.next(history_); }
	// Of tokens at these positions that come next: those of the first tokens of blocks that would end with them, 0
	// where there is none. Empty unless Config::indexer has blocks of several tokens.
	std::vector<Position> block_starts(std::span<const Position> next);

	// ---- for session files
	// Replaces an empty session's sequences: KvSequence::restore(). window_books: those of the cache of window_seq().
	// Throws Error{Format} if the books do not hold the same number of tokens.
	// entry_books: of entries().
	void restore(std::span<const std::byte> books, std::span<const std::byte> window_books,
	             std::span<const std::span<const std::byte>> entry_books, std::vector<uint32_t> history,
	             const std::function<void(std::span<std::byte>)>& source);
	void check_idle() const; // throws Error{Invalid} while a Prefill of this session lives

	// Throws Error{Context} if these tokens, or n tokens, do not fit; Invalid on no tokens, on one outside the
	// vocabulary and while a Prefill of this session lives.
	void check_room(std::span<const uint32_t> tokens) const;
	void check_room(uint64_t n) const;

 private:
	friend class Prefill;
	friend void fill_with_noise(Session&, uint32_t);
	friend void store_as(Session&, Session&);
	friend std::span<const RowLogits> decode_step(std::span<const struct SessionRow>);
	struct Sequences { // one for each cache
		std::unique_ptr<KvSequence> main, window;
		std::unique_ptr<StateSequence> states = nullptr;
		std::unique_ptr<IndexSequence> index = nullptr;
		std::vector<std::unique_ptr<KvSequence>> entries = {};
		Sequences fork() const {
			Sequences f{main->fork(), window ? window->fork() : nullptr, states ? states->fork() : nullptr,
			            index ? index->fork() : nullptr};
			for (const auto& s : entries) f.entries.push_back(s->fork());
			return f;
		}
		uint32_t exact_position(uint32_t n) const; // that all of them can go back to
		void reset();
		bool together() const; // caches and states have equally many tokens
	};
	Session(const Session&, Sequences);
	size_t window_bytes(uint64_t n_tokens) const; // of caches that the policy does not apply to
	void check_split() const;
	size_t state_bytes() const; // of recurrent layers: a state, and the next one while a prompt is read
	void append_history(std::span<const uint32_t> tokens) {
		history_.insert(history_.end(), tokens.begin(), tokens.end());
	}
	void fit_host_copy();
	std::exception_ptr fault_of(uint32_t token); // token: just appended by a decode step that got no usable logits
	bool sync_history() noexcept;                // after a failure: whether the sequence has become shorter
	void hold_scales(); // before tokens are read: those of the engine, of which the session must have no others
	void history_room(uint32_t n); // makes append_history() of n tokens one that does not fail
	void prompt_read();            // call when a prompt is complete: makes a checkpoint
	const Sequences* checkpoint_at(uint32_t n) const;
	bool drop_checkpoint(); // the oldest one; false if there is none
	// Runs `f`, which must change nothing when it throws OutOfMemory; checkpoints are dropped to make room for it.
	template <class F> auto make_room_for(F f) {
		for (;;) try {
				return f();
			} catch (const Error& e) {
				if (e.code != Code::OutOfMemory || !drop_checkpoint()) throw;
			}
	}

	Engine& engine_;
	SessionOptions options_;
	std::shared_ptr<const KvPlan> plan_, window_plan_; // shared with forks only
	std::vector<std::shared_ptr<const KvPlan>> entry_plans_;
	Window window_;
	std::shared_ptr<const RopeTables> rope_;
	uint32_t ctx_ = 0;
	bool ctx_by_budget_ = false;
	bool reading_ = false; // a Prefill lives
	Sequences seqs_;
	std::vector<uint32_t> history_;
	std::vector<float> lora_scales_;
	TextPositions positions_;            // behind history_
	std::vector<Sequences> checkpoints_; // by length
	std::vector<float> logits_;          // (vocab) of the latest prompt
};

struct SessionRow { // the next token of a session
	Session* session;
	uint32_t token;
	uint32_t top = 0; // number of largest logits that suffice (Sampler::wanted()); 0: all are wanted
	// Tokens that may follow it, at most step_tokens() - 1: one row each, with the same `top`.
	std::span<const uint32_t> drafts = {};
};
// One decode step: appends each row's token and its drafts to its session. Sessions must be distinct and of one engine,
// all tokens together at most Engine::max_rows(). Returns the logits of the rows' tokens, then those of the first row's
// drafts, of the second's, .., valid until the next step; they are bit-identical to those of single-token steps. Throws
// RowError{Context, OutOfMemory, Invalid} naming the failing row, with nothing appended to any session. If the device
// fails during the step, sessions are unchanged or empty. A row whose logits are not finite has its token appended and
// RowLogits::fault set.
std::span<const RowLogits> decode_step(std::span<const SessionRow> rows);
// The same for rows that all want all logits; returns (rows, vocab). Throws the first fault of a row.
std::span<const float> decode(std::span<const SessionRow> rows);

} // namespace kvrun
