// Prefill: reads a prompt into a session, in pieces of bounded time.
#pragma once
#include "engine/kv_device/index_step.h"
#include "engine/kv_device/prefill.h"
#include "engine/run/layer_runner.h"
#include "engine/run/positions.h"
#include "engine/run/prompt_images.h"
#include "engine/run/prompt_memory.h"
#include "engine/run/prompt_states.h"
#include "engine/run/weight_ring.h"
#include <algorithm>
#include <deque>
#include <functional>
#include <optional>

namespace kvrun {

class Session;
class Prefill;

struct QueryRows {                  // of one layer
	uint32_t layer, first, n;       // rows [first, first + n) of the prompt
	std::span<const float> q, rope; // (n, n_heads, head_dim); with latent attention (n, n_heads, rope_dim), else empty
};

struct PrefillHooks {
	// Called after every piece; false cancels the prompt.
	std::function<bool(const Prefill&)> progress = {};
	// If set, gets logits of every row, in order and in pieces: rows [first, first + n) of the prompt, (n, vocab).
	std::function<void(uint32_t first, uint32_t n, std::span<const float> logits)> all_logits = {};
	// If set, and all_logits is not, gets the last hidden state (n, dim) of every row likewise
	// (LayerRunner::read_states).
	std::function<void(uint32_t first, uint32_t n, std::span<const float> states)> all_states = {};
	StateHook states = {}; // hidden states of rows, if it has layers
	// If set together with one of both, gets the queries of every row of every layer that attends, as attention reads
	// them.
	std::function<void(const QueryRows&)> queries = {};
};

// Appends tokens to a session: in blocks (EngineOptions::prefill_block), a block layer by layer, a layer in pieces of
// rows. Where several devices divide the layers, a block passes them in slices: each device takes a slice through its
// layers while the next one takes the slice before through its own (Lane). Between pieces the device has no work of the
// prompt, so other sequences can run. Results do not depend on how a layer is cut into pieces. Destroying it before
// done() cancels the prompt: tokens of finished blocks stay in the session, the others are removed. While a Prefill
// lives, its session takes no other tokens.
class Prefill {
 public:
	static constexpr double kPieceSeconds = 0.1;

	// Throws Error{Context} if the tokens do not fit, Invalid on a token outside the vocabulary that is no row of an
	// image, NotFound if such an image is no longer held; nothing is then changed.
	Prefill(Session&, std::span<const uint32_t> tokens, PrefillHooks = {});
	~Prefill();
	Prefill(const Prefill&) = delete;

	// Runs about so many seconds of work on the device, at least one row of one layer; returns done(). Throws
	// Error{OutOfMemory} if the cache's budget is used up, Error{Device} if logits are not finite; the prompt is
	// then cancelled.
	bool step(double seconds = kPieceSeconds);
	// Steps until done; returns false if the progress hook cancelled.
	bool finish();

	bool done() const { return stage_ == Stage::Done; }
	std::span<const float> logits() const { return logits_; }      // (vocab) of the last token, once done()
	uint32_t n_tokens() const { return uint32_t(tokens_.size()); } // of the prompt
	uint32_t n_read() const { return n_read_; }                    // of them, cached so far: whole blocks
	double progress() const;                                       // share of the work that is done, 0 .. 1
	double seconds_left() const; // at the pace so far; 0 before the first piece is done

	// The error for results that are not finite. where: as named by locate_fault().
	static Error fault(const std::string& where);
	static constexpr const char* kLogits = "the logits are";
	// Reads the current block, or else the first one, again from its beginning. Checks the residual stream before and
	// after every layer until one is not finite; returns its name. The block is then cancelled.
	std::string locate_fault();

 private:
	enum class Stage : uint8_t { Block, Rows, Moves, Logits, Done };
	// Each enqueues one piece of about `room` work at most and returns its work; 0 if none was enqueued because a piece
	// is larger. `must`: enqueues a piece of any size.
	double piece(double room, bool must);
	double begin_block();
	void write_tokens(std::span<const Position>);
	void attend(KvPrefill& kv, uint32_t k, const LayerRows& r, bool owns, IndexStep* index);
	std::optional<IndexStep> store_index(const LayerRows&);
	void store_entries(const LayerRows&);
	void attend_blocks(KvPrefill& window, uint32_t k, const LayerRows&, IndexStep* index);
	double rows(double room, bool must);
	void project_out(const LayerRows&, bool all);
	double layer_rows(uint32_t m);
	double recurrent_rows(uint32_t m);
	void enter(LayerRows&);
	void recur(LayerRows&);
	double moves(double room);
	void begin_moves(uint32_t from);
	double logits_piece();
	void delivered(); // call after the wait: delivers the logits that were read
	bool usable() const;
	void end_block();
	bool begin_lanes();
	void choose_form();
	void attend_expanded(const LayerRows& r, KvPrefill& kv, const KvRows& own);
	void next_cell();
	uint32_t cell_end() const { return std::min(n_, (lanes_[lane_].slice + 1) * slice_rows_); }
	uint32_t rows_that_fit(double room) const;
	double rows_work(uint32_t l, uint32_t first, uint32_t n) const; // of rows first .. first + n - 1 of the block
	double block_work(uint32_t first_token, uint32_t n) const;
	KvPrefill& cache_of(uint32_t l);
	void give_up_block();
	bool wants_all() const { return hooks_.all_logits || hooks_.all_states; } // logits or states of all rows
	bool has_state(uint32_t l) const { return runner_.config().layers[l].recurrent.n_heads != 0; }
	bool owns_kv(uint32_t l) const { return has_own_kv(runner_.config(), l); }
	bool needs_rows(uint32_t l) const { return computes_all(l) || owns_kv(l) || has_state(l); }
	bool computes_all(uint32_t l) const; // whether all rows of the residual stream of layer l are needed

	Session& session_;
	LayerRunner& runner_;
	std::vector<uint32_t> tokens_;
	PrefillHooks hooks_;
	uint32_t layers_, ubatch_, block_;
	std::optional<PromptImages> images_;
	std::unique_ptr<PromptMemory> memory_;
	std::optional<KvPrefill> kv_, window_kv_;              // of the block, for each cache
	std::optional<KvPrefill> entries_kv_[kMostBlockSizes]; // the same, by CacheLayers::blocks()
	std::optional<StateStep> states_step_;                 // of the block, if layers are recurrent
	std::optional<RingPass> ring_;                         // of the block
	Stage stage_ = Stage::Block;
	uint32_t n_read_ = 0;
	uint32_t n_ = 0, layer_ = 0, at_ = 0; // of the block: tokens, current layer, current row
	// A device's consecutive layers. Slices pass one lane after the other, and a lane's layers in order. A cell is one
	// layer of one slice. One device: one lane, and one slice with all rows.
	struct Lane {
		uint32_t first, end; // layers
		uint32_t layer;      // of the next cell
		uint32_t slice = 0;
	};
	std::vector<Lane> lanes_;
	bool expanded_ = false; // the block has latent attention in its expanded form
	uint32_t unpacked_ = 0; // older tokens of the layer in front of the block's own, in that form
	uint32_t lane_ = 0, slice_rows_ = 0;
	uint32_t moving_ = 0;                     // layer whose keys and values are being stored in pages
	bool planned_ = false;                    // its moves are decided
	double moved_ = 0;                        // work of its moves that is enqueued
	std::vector<float> read_, hidden_;        // logits being read from the device; their hidden states
	bool reading_ = false;                    // inside step(): reads into this object may be pending
	std::vector<float> states_;               // if wanted, of all these rows; logits are then of the last only
	std::optional<PromptStates> for_drafter_; // if the hook has layers
	struct Queries {
		uint32_t layer, first, n;
		std::vector<float> rows, rope;
	};
	std::deque<Queries> queries_; // being read from the device
	struct Look {
		std::string where;
		std::vector<float> rows; // (n, dim) of the residual stream
	};
	std::deque<Look> looks_; // of locate_fault(), since the last wait
	bool looking_ = false;
	std::vector<float> logits_;
	double total_ = 0, done_ = 0, seconds_ = 0; // total and completed work; time taken
};

// Appends n tokens with noise as keys and values, stored like a prompt's and with the same memory; neither the model
// nor attention runs. For measuring what follows a long prompt. Throws as Prefill does.
void fill_with_noise(Session&, uint32_t n);

} // namespace kvrun
