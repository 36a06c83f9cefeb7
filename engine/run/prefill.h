// Prefill: a prompt on its way into a session, in pieces of bounded time.
#pragma once
#include "engine/kv_device/prefill.h"
#include "engine/run/layer_runner.h"
#include "engine/run/prompt_memory.h"
#include <deque>
#include <functional>
#include <optional>

namespace kvrun {

class Session;
class Prefill;

struct PrefillHooks {
	// Called after every piece; false cancels the prompt.
	std::function<bool(const Prefill&)> progress = {};
	// If set: logits of every row, in order, in pieces: rows [first, first + n) of the prompt, values (n, vocab).
	std::function<void(uint32_t first, uint32_t n, std::span<const float> logits)> all_logits = {};
	// If set, and all_logits is not: the same with the last hidden state (n, dim) of every row
	// (LayerRunner::read_states).
	std::function<void(uint32_t first, uint32_t n, std::span<const float> states)> all_states = {};
	// If set, with one of both: queries (n, n_heads, head_dim) of every row of every layer that attends, as attention
	// takes them.
	std::function<void(uint32_t layer, uint32_t first, uint32_t n, std::span<const float> queries)> queries = {};
};

// Appends tokens to a session: in blocks (EngineOptions::prefill_block), a block layer by layer, a layer in pieces of
// rows. Between pieces nothing is under way on the device, so other sequences can take their turn. Results do not
// depend on how a layer is cut into pieces. Destroying it before done() cancels: tokens of finished blocks stay in the
// session, the others never were. While one lives, its session takes no other tokens.
class Prefill {
 public:
	static constexpr double kPieceSeconds = 0.1;

	// Throws Error{Context} when the tokens do not fit, Invalid on a token outside the vocabulary, with nothing
	// changed.
	Prefill(Session&, std::span<const uint32_t> tokens, PrefillHooks = {});
	~Prefill();
	Prefill(const Prefill&) = delete;

	// About so many seconds of work on the device, at least one row through one layer; returns done(). Throws
	// Error{OutOfMemory} when the cache's budget is used up, Error{Device} when logits are no numbers; the prompt is
	// then cancelled.
	bool step(double seconds = kPieceSeconds);
	// Steps until done; false when the progress hook cancelled.
	bool finish();

	bool done() const { return stage_ == Stage::Done; }
	std::span<const float> logits() const { return logits_; }      // (vocab) of the last token, once done()
	uint32_t n_tokens() const { return uint32_t(tokens_.size()); } // of the prompt
	uint32_t n_read() const { return n_read_; }                    // of them, cached so far: whole blocks
	double progress() const;                                       // share of the work that is done, 0 .. 1
	double seconds_left() const; // at the pace so far; 0 before the first piece is done

	// What came out is no numbers to go on from: where, as locate_fault() names it.
	static Error fault(const std::string& where);
	static constexpr const char* kLogits = "the logits are";
	// Reads the block under way again from its beginning, or the first one, with a look at the residual stream before
	// and behind every layer, until one has no norm; names it. The block then never was.
	std::string locate_fault();

 private:
	enum class Stage : uint8_t { Block, Rows, Moves, Logits, Done };
	// Each enqueues one piece of at most about `room` work and returns the work it takes, 0: none, a piece is larger.
	// `must`: a piece of any size.
	double piece(double room, bool must);
	double begin_block();
	double rows(double room, bool must);
	double recurrent_rows(uint32_t m);
	double moves(double room);
	void begin_moves(uint32_t from);
	double logits_piece();
	void delivered(); // after the wait: logits that were read
	bool usable() const;
	void end_block();
	uint32_t rows_that_fit(double room) const;
	double rows_work(uint32_t l, uint32_t first, uint32_t n) const; // of rows first .. first + n - 1 of the block
	double block_work(uint32_t first_token, uint32_t n) const;
	KvPrefill& cache_of(uint32_t l);
	void give_up_block();
	bool wants_all() const { return hooks_.all_logits || hooks_.all_states; } // rows, not only the last one
	bool owns_kv(uint32_t l) const { return has_own_kv(runner_.config(), l); }
	bool computes_all(uint32_t l) const; // of layer l all rows of the residual stream are wanted

	Session& session_;
	LayerRunner& runner_;
	std::vector<uint32_t> tokens_;
	PrefillHooks hooks_;
	uint32_t layers_, ubatch_, block_;
	std::unique_ptr<PromptMemory> memory_;
	std::optional<KvPrefill> kv_, window_kv_; // of the block, for each cache
	std::optional<StateStep> states_step_;    // of the block, where layers are recurrent
	Stage stage_ = Stage::Block;
	uint32_t n_read_ = 0;
	uint32_t n_ = 0, layer_ = 0, at_ = 0; // of the block: tokens; where it is
	uint32_t moving_ = 0;                 // the layer whose keys and values go into pages
	bool planned_ = false;                // its moves are decided
	double moved_ = 0;                    // work of its moves that is enqueued
	std::vector<float> read_, hidden_;    // logits on their way from the device; the rows they come from
	bool reading_ = false;                // within step(): reads into this object may be under way
	std::vector<float> states_;           // where they are wanted, of all these rows; the logits are of the last alone
	struct Queries {
		uint32_t layer, first, n;
		std::vector<float> rows;
	};
	std::deque<Queries> queries_; // on their way from the device
	struct Look {
		std::string where;
		std::vector<float> rows; // (n, dim) of the residual stream
	};
	std::deque<Look> looks_; // of locate_fault(), since the last wait
	bool looking_ = false;
	std::vector<float> logits_;
	double total_ = 0, done_ = 0, seconds_ = 0; // work; time it has taken
};

// Appends n tokens with noise for keys and values, stored as a prompt's are and taking the same memory; the model does
// not run and nothing attends. For measuring what comes after a long prompt. Throws as Prefill does.
void fill_with_noise(Session&, uint32_t n);

} // namespace kvrun
