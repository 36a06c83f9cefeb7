// Prompts -> answers: the loop over prompts and tokens of any number of sessions, with sampling, stop rules and timing.
#pragma once
#include "engine/run/draft.h"
#include "engine/run/sampler.h"
#include "engine/run/session.h"
#include "models/grammar/grammar.h"
#include <atomic>
#include <chrono>
#include <exception>
#include <map>

namespace kvrun {

enum class StopReason : uint8_t {
	Length,    // as many tokens as asked for
	Context,   // the context is full
	End,       // the model ended its answer
	Stop,      // a stop string appeared
	Cancelled, // the caller asked to stop
};
const char* stop_reason_name(StopReason); // "length", "context", "end", "stop", "cancelled"

struct GenerateOptions {
	uint32_t n = UINT32_MAX; // most tokens of the answer
	SamplerOptions sampling;
	std::vector<std::string> stops;            // strings that end the answer and are not part of it
	bool ignore_end = false;                   // go on after end-of-text tokens
	bool special = false;                      // control tokens appear in the text
	std::shared_ptr<grammar::Grammar> grammar; // the answer follows it and ends when it is complete; null if absent
	const std::atomic<bool>* cancel = nullptr; // checked between tokens and between pieces of the prompt
	// Speculation: most drafted tokens per step; 0: none. The answer is the same, token for token.
	uint32_t draft_max = 0;
	std::function<std::unique_ptr<Drafter>()> drafter = {}; // null: Engine::drafter(), else LookupDrafter
};
struct GenerateHooks {
	std::function<bool(const Prefill&)> prefill = {};     // after each piece of the prompt; false cancels
	std::function<void(uint32_t token)> token = {};       // each token of the answer, before the text that it completes
	std::function<bool(std::string_view text)> text = {}; // whole characters of the answer; false cancels
};
struct GenerateResult {
	StopReason reason = StopReason::Length;
	std::vector<uint32_t> tokens;       // tokens of the answer, without the end-of-text token that ended it
	uint32_t prompt_tokens = 0;         // tokens of the prompt
	uint32_t prompt_read = 0;           // of them, cached: all unless it was cancelled
	double prompt_work = 0;             // share of the prompt's work that was done, 0 .. 1
	double prefill_s = 0, decode_s = 0; // seconds; the first token comes out of the prefill
	uint32_t decode_steps = 0;          // tokens decoded in decode_s
	DraftStats draft;
	KvBytes kv;                 // cache at the end
	uint32_t stop = UINT32_MAX; // which of GenerateOptions::stops appeared; UINT32_MAX: none
	std::exception_ptr error;   // the failure that ended the answer, if any
};

// Active answers. One step() runs a piece of one prompt and one token of every answer, or several where drafts are
// accepted; a stream's tokens do not depend on the other streams of the batch.
class Batch {
 public:
	explicit Batch(Engine&);
	~Batch(); // cancels active streams
	Batch(const Batch&) = delete;

	// Appends the prompt to the session. The caller must not use the session until done(id), and must keep it until
	// take(id) or the batch's end. Throws Error{Context, Invalid} as Prefill does, Unsupported if drafts are wanted and
	// the session cannot speculate. Returns the stream's id.
	uint32_t add(Session&, std::span<const uint32_t> prompt, const GenerateOptions&, GenerateHooks = {});
	// Adds another answer to the prompt of stream `of`, which is still being read: the prompt is read once. This
	// session, an earlier fork of that stream's session, then becomes a fork of it (Session::take_fork). Prompt hooks
	// are not called, and the result counts no prompt. If the prompt is not read to its end, this stream ends as `of`
	// does. Throws Error{Invalid} if `of` reads no prompt.
	uint32_t add_fork(Session&, uint32_t of, const GenerateOptions&, GenerateHooks = {});
	// Returns whether any stream is still active. A failure of one stream ends that stream (GenerateResult::error).
	bool step();
	size_t n_active() const; // active streams
	bool done(uint32_t id) const;
	// Sets a function that may change the logits (vocab) before each token of a stream is chosen; false cancels.
	void on_logits(uint32_t id, std::function<bool(std::span<float>)>);
	GenerateResult take(uint32_t id); // returns a stream's result, cancels it if still active, frees the id

 private:
	struct Stream;
	void read_prompt(Stream&, double seconds);
	void begin_answer(Stream&, const RowLogits&); // after the prompt
	void begin_forks(const Stream& of, const RowLogits&);
	std::vector<Stream*> waiting_for(const Stream&);
	void decode_in_steps(std::span<Stream* const>);
	void decode_rows(std::span<Stream* const>);
	void draft(std::span<Stream* const>);
	void verify(Stream&, size_t row, size_t first_draft, std::span<const RowLogits>);
	// Chooses the next token: the answer continues or ends. whole_row: gets all logits if the row has only the largest.
	void choose(Stream&, RowLogits, const std::function<std::span<const float>()>& whole_row = {});
	void end(Stream&, StopReason);
	void end_with_error(Stream&);

	Engine& engine_;
	std::map<uint32_t, std::unique_ptr<Stream>> streams_; // by id, which is also the order of arrival
	uint32_t next_id_ = 0;
	uint64_t n_pieces_ = 0; // of prompts
	double decode_s_ = 0;   // seconds of a recent decode step; 0 if there was none
};

// Runs a batch of one stream. Throws the failure that ended it.
GenerateResult generate(Session&, std::span<const uint32_t> prompt, const GenerateOptions&, const GenerateHooks& = {});

} // namespace kvrun
