// Generates answers: a thread that steps a batch, with a queue before it and sessions kept for prompts to come.
#pragma once
#include "tools/serve/answer_form.h"
#include "tools/serve/logprobs.h"
#include "tools/serve/session_pool.h"
#include "tools/serve/worker.h"

namespace kvrun::serve {

struct Sampling { // the fields of kvrun_generate_options that requests choose
	uint32_t max_tokens = UINT32_MAX;
	double temperature = 0.8, top_p = 0.95, min_p = 0.05, repeat_penalty = 1;
	uint32_t top_k = 40, repeat_last_n = 64;
	double presence_penalty = 0, frequency_penalty = 0;
	std::vector<kvrun_logit_bias> bias;
	uint64_t seed = 0;
	std::vector<std::string> stops;
	bool special = false, ignore_eos = false;
	std::optional<uint32_t> logprobs; // alternatives to each token; nullopt: no logprobs
	uint32_t draft_max = UINT32_MAX;  // most tokens guessed for a step, where the server guesses any
};

struct Ended { // how an answer did
	kvrun_generate_result result = KVRUN_GENERATE_RESULT_INIT;
	uint32_t reused = 0; // tokens of the prompt that an earlier session had
	SessionBytes kv;     // its cache at the end
	std::string policy;
	bool drafts = false;           // tokens were guessed, or might have been
	std::string session, not_kept; // conversation's name, empty: it has none; why it could not be kept
};

// Told by the generation thread how an answer goes: begin(), any number of piece(), and end() or fail().
class Listener {
 public:
	virtual ~Listener() = default;
	virtual bool gone() const = 0; // nobody waits any more: the answer is cancelled within a step
	virtual void begin() = 0;      // the prompt is accepted; more than once where memory made it begin again
	// How far the prompt has been read: a share, and the seconds that are left at the pace so far.
	virtual void reading(double /*done*/, double /*seconds_left*/) {}
	virtual void token(Json) {} // as Logprobs has it, before its piece, where logprobs are wanted
	virtual void piece(std::string_view text) = 0;
	virtual void end(const Ended&) = 0;
	virtual void fail(const ApiError&) = 0;
};

struct Job {
	Residency::Use use = nullptr; // of the model; ends last
	std::vector<uint32_t> prompt;
	Sampling sampling;
	std::string kv; // policy
	std::shared_ptr<Listener> listener;
	bool reuse = true;                          // of a session that holds the prompt's beginning
	size_t passed_on = 0, tokens_passed_on = 0; // bytes and tokens of the answer its listener has, where memory made it
	                                            // begin again
	std::shared_ptr<SessionStore::Hold> named = nullptr;    // conversation it belongs to; null: none
	Grammar grammar = nullptr;                              // that the answer follows
	std::function<std::string(std::string_view)> note = {}; // of the conversation with this answer
	std::shared_ptr<BodyMemory::Held> body = nullptr;       // of the request, which the prompt counts as
	// Other answers to the same prompt, which is read once. They have none themselves, and the prompt, too: one for
	// which there is no memory begins again by itself.
	std::vector<Job> forks = {};
	size_t answers() const { return 1 + forks.size(); }
};

struct SlotInfo {        // of an answer under way
	bool saving = false; // it has ended, and its conversation goes to its file
	std::string policy, session;
	uint32_t prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;
	SessionBytes kv;
	kvrun_fetch_info fetch;
};

struct GeneratorOptions {
	uint32_t parallel = 4;                        // answers at once
	uint32_t queue = 32;                          // answers that wait for one of them to end
	uint32_t idle_sessions = 4;                   // kept for prompts that begin like an earlier one
	uint32_t ctx = 0;                             // of each session, in tokens; 0: what fits
	std::chrono::duration<double> idle_unload{0}; // without a request, after which the model is unloaded; 0: never
	uint32_t draft_max = 0;                       // most tokens guessed for a step; 0: none
};

struct GeneratorStats {
	uint32_t active = 0, queued = 0, idle = 0;
	uint64_t prompt_tokens = 0, reused_tokens = 0, answer_tokens = 0; // since the start, of answers that have ended
	uint64_t answers = 0, cancelled = 0, failed = 0;                  // that have ended; all of a request's choices
	SessionBytes idle_bytes, active_bytes;                            // of idle sessions; of answers under way
	std::vector<SlotInfo> slots;                                      // answers under way
};

class Generator {
 public:
	Generator(const Model&, const GeneratorOptions&);
	~Generator(); // cancels what is under way
	// All of them or none. Throws ApiError 429 where the queue is full; 400 where a job has more answers than can be
	// given at once, or all jobs have more than the queue.
	void add(std::vector<Job>);
	void check_room(size_t jobs, size_t answers) const; // of so many each; throws what add() would
	void check_queue() const;                           // throws ApiError 429 where it is full
	void drop_idle();                                   // all idle sessions, before it returns; any thread may call
	void drop_gone(); // requests in the queue that nobody waits for; any thread may call
	uint32_t longest_context() const { return longest_context_; } // tokens that no session has more of
	GeneratorStats stats() const;

 private:
	struct Active;
	using Group = std::vector<std::unique_ptr<Active>>; // answers to one prompt; the first reads it
	void run();
	bool wait_for_work(); // false: none will come
	void admit();
	bool start(Job&); // false: not now, there is no memory
	kvrun_status add_to_batch(const Job&, SessionPool::Lease&, Group&);
	kvrun_status add_one(const Job&, const Job& first, uint32_t kept, Active&, const Active& reader);
	size_t n_waiting() const;                         // answers in the queue; the mutex is held
	void room_for(size_t jobs, size_t answers) const; // as check_room(); the mutex is held
	void queue_for(size_t answers) const;             // as check_queue(); the mutex is held
	size_t n_under_way() const { return active_.size() + saving_.size(); }
	bool can_admit() const; // one from the queue, as far as answers that are being saved go; the mutex is held
	void step();
	void finish(std::unique_ptr<Active>, bool shared); // shared: others held memory too
	void save(std::unique_ptr<Active>);                // a named conversation, in its file, on another thread
	void settle_saved();                               // those whose conversations have been saved since
	void settle(Active&);                              // the client is told
	void begin_again(Active&);
	void fail_all(const ApiError&);
	void publish();

	const Model& model_;
	const GeneratorOptions options_;
	const uint32_t longest_context_;
	mutable std::mutex mutex_; // of the next ones
	std::condition_variable wake_;
	std::deque<Job> queue_;
	std::vector<Active*> saved_; // of saving_: to be settled
	GeneratorStats stats_;
	bool ending_ = false, drop_idle_ = false;

	// the generation thread's own
	SessionPool pool_;
	BatchHandle batch_;
	std::vector<std::unique_ptr<Active>> active_;
	std::vector<std::unique_ptr<Active>> saving_; // the saver's, until they are in saved_
	bool wait_for_memory_ = false;                // the next in the queue begins once an answer has ended
	Worker saver_;                                // writes conversations to their files
	std::thread thread_;
};

} // namespace kvrun::serve
