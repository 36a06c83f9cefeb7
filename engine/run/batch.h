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
	std::vector<std::string> stops;            // end the answer, and are not part of it
	bool ignore_end = false;                   // go on after end-of-text tokens
	bool special = false;                      // control tokens appear in the text
	std::shared_ptr<grammar::Grammar> grammar; // that the answer follows; it ends where nothing can follow. Null: none
	const std::atomic<bool>* cancel = nullptr; // checked between tokens and between pieces of the prompt
	// Speculation: most tokens that are drafted for a step; 0: none. The answer is the same, token for token.
	uint32_t draft_max = 0;
	std::function<std::unique_ptr<Drafter>()> drafter = {}; // null: a LookupDrafter
};
struct GenerateHooks {
	std::function<bool(const Prefill&)> prefill = {};     // after each piece of the prompt; false cancels
	std::function<void(uint32_t token)> token = {};       // of the answer, before the text that becomes certain with it
	std::function<bool(std::string_view text)> text = {}; // whole characters of the answer; false cancels
};
struct GenerateResult {
	StopReason reason = StopReason::Length;
	std::vector<uint32_t> tokens;       // of the answer, an end-of-text token that ended it excluded
	uint32_t prompt_tokens = 0;         // given
	uint32_t prompt_read = 0;           // of them, cached: all, unless it was cancelled
	double prompt_work = 0;             // share of the prompt's work that was done, 0 .. 1
	double prefill_s = 0, decode_s = 0; // seconds; the first token comes out of the prefill
	uint32_t decode_steps = 0;          // tokens decoded in decode_s
	DraftStats draft;
	KvBytes kv;                 // cache at the end
	uint32_t stop = UINT32_MAX; // which of GenerateOptions::stops appeared; UINT32_MAX: none
	std::exception_ptr error;   // what ended it, if it was no reason but a failure
};

// Answers under way. One step() is a piece of one prompt and one token of every answer, or several where drafts are
// accepted; a stream's tokens do not depend on what else is in the batch.
class Batch {
 public:
	explicit Batch(Engine&);
	~Batch(); // cancels what is under way
	Batch(const Batch&) = delete;

	// The prompt is appended to the session, which the caller must not use until done(id), and keep until take(id) or
	// the batch's end. Throws Error{Context, Invalid} as Prefill does, Unsupported where its session cannot speculate.
	// Returns the stream's id.
	uint32_t add(Session&, std::span<const uint32_t> prompt, const GenerateOptions&, GenerateHooks = {});
	// Another answer to the prompt of stream `of`, which has not been read yet: it is read once, and then the session,
	// a fork of that stream's from before, becomes a fork of it (Session::take_fork). Prompt hooks are not called, and
	// result counts no prompt. If the prompt is not read to its end, this stream ends as `of` does. Throws
	// Error{Invalid} where `of` reads no prompt.
	uint32_t add_fork(Session&, uint32_t of, const GenerateOptions&, GenerateHooks = {});
	// Returns whether anything is still under way. A failure of one stream ends that stream (GenerateResult::error).
	bool step();
	size_t n_active() const; // streams under way
	bool done(uint32_t id) const;
	// Called with the logits (vocab) before each token of a stream is chosen, which it may change; false cancels.
	void on_logits(uint32_t id, std::function<bool(std::span<float>)>);
	GenerateResult take(uint32_t id); // of a stream, cancelled if it is still under way; the id is free again

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
	// The next token: the answer goes on, or ends. whole_row: all logits, where only the largest are there.
	void choose(Stream&, RowLogits, const std::function<std::span<const float>()>& whole_row = {});
	void end(Stream&, StopReason);
	void end_with_error(Stream&);

	Engine& engine_;
	std::map<uint32_t, std::unique_ptr<Stream>> streams_; // by id: in the order in which they came
	uint32_t next_id_ = 0;
	uint64_t n_pieces_ = 0; // of prompts
	double decode_s_ = 0;   // seconds of a decode step of late; 0: there was none
};

// A batch of one. Throws what ended it.
GenerateResult generate(Session&, std::span<const uint32_t> prompt, const GenerateOptions&, const GenerateHooks& = {});

} // namespace kvrun
