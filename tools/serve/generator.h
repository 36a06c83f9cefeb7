// Generates answers: one thread steps a batch, fed by a queue; ended sessions are kept for reuse by later prompts.
#pragma once
#include "tools/answer/sampling.h"
#include "tools/serve/answer_form.h"
#include "tools/serve/logprobs.h"
#include "tools/serve/session_pool.h"
#include "tools/serve/worker.h"

namespace kvrun::serve {

struct Sampling : kvrun::Sampling { // the fields of kvrun_generate_options that requests can set
	uint32_t max_tokens = UINT32_MAX;
	std::vector<kvrun_logit_bias> bias;
	uint64_t seed = 0;
	std::vector<std::string> stops;
	bool special = false, ignore_eos = false;
	std::optional<uint32_t> logprobs; // number of alternatives per token; nullopt if not requested
	uint32_t draft_max = UINT32_MAX;  // most draft tokens per step, if the server drafts
	uint32_t indent = 0; // a line that begins with fewer spaces and tabs ends the answer before it; 0: none does
	double most_ms = 0;  // time of the answer after which it ends behind a whole line; 0 or less: no limit
};

struct Ended { // result of an answer
	kvrun_generate_result result = KVRUN_GENERATE_RESULT_INIT;
	uint32_t reused = 0; // prompt tokens reused from an earlier session
	SessionBytes kv;     // its cache size at the end
	std::string policy;
	bool drafts = false;           // speculation was enabled
	std::string session, not_kept; // name of the conversation, or empty; why it could not be saved, or empty
};

// Called by the generation thread as an answer proceeds: start(), begin(), any number of piece(), and end() or fail().
class Listener {
 public:
	virtual ~Listener() = default;
	virtual bool gone() const = 0; // the client has disconnected: the answer is cancelled within a step
	virtual void start(uint32_t /*prompt*/, uint32_t /*cached*/) {} // tokens of the prompt, and those that are not read
	virtual void begin() = 0; // the prompt is accepted; called again if lack of memory restarts the answer
	// Progress of the prompt: the share that was read, and the estimated seconds left.
	virtual void reading(double /*done*/, double /*seconds_left*/) {}
	virtual void chosen(uint32_t /*token*/) {} // called before its piece
	virtual void token(Json) {} // as returned by Logprobs; called before its piece, if logprobs are requested
	virtual void piece(std::string_view text) = 0;
	virtual void end(const Ended&) = 0;
	virtual void fail(const ApiError&) = 0;
};

struct HeldToken { // with log probabilities; the client gets it with its text
	Json entry;
	size_t at; // bytes of the answer before it
};

struct Job {
	Residency::Use use = nullptr; // keeps the model loaded; destroyed last
	std::vector<uint32_t> prompt;
	Sampling sampling;
	std::string kv; // policy
	Scales scales;  // of the adapters
	std::shared_ptr<Listener> listener;
	bool reuse = true;                          // may reuse a session that holds the beginning of the prompt
	size_t passed_on = 0, tokens_passed_on = 0; // bytes and tokens of the answer its listener already has, if lack of
	                                            // memory restarts the answer
	std::deque<HeldToken> held = {};            // not passed on
	size_t token_bytes = 0;                     // of all tokens so far
	std::shared_ptr<SessionStore::Hold> named = nullptr;    // its named conversation; null if none
	Grammar grammar = nullptr;                              // constrains the answer; null if none
	std::function<std::string(std::string_view)> note = {}; // returns the conversation's note, with this answer
	std::shared_ptr<BodyMemory::Held> body = nullptr;       // memory share of the request's body, held for the prompt
	// Other answers to the same prompt, which is read once. They have no forks, but their own copy of the prompt: one
	// that runs out of memory restarts on its own.
	std::vector<Job> forks = {};
	size_t answers() const { return 1 + forks.size(); }
};

struct SlotInfo {        // state of an answer under way
	bool saving = false; // it has ended, and its conversation is being saved
	std::string policy, session;
	uint32_t prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;
	SessionBytes kv;
	kvrun_fetch_info fetch;
};

struct GeneratorOptions {
	uint32_t parallel = 4;                        // answers at once
	uint32_t queue = 32;                          // answers that wait for a free place
	uint32_t idle_sessions = 64;                  // sessions kept for reuse by prompts with a common beginning
	uint32_t ctx = 0;                             // tokens of each session's context; 0: as many as fit
	std::chrono::duration<double> idle_unload{0}; // idle time after which the model is unloaded; 0: never
	uint32_t draft_max = 0;                       // most draft tokens per step; 0 disables speculation
};

struct GeneratorStats {
	uint32_t active = 0, queued = 0, idle = 0;
	uint64_t prompt_tokens = 0, reused_tokens = 0, answer_tokens = 0; // since the start, of answers that have ended
	double prompt_seconds = 0, answer_seconds = 0;                    // that the tokens took which were read; generated
	uint64_t answers = 0, cancelled = 0, failed = 0;                  // that have ended; each choice counts
	SessionBytes idle_bytes, active_bytes;                            // of idle sessions; of answers under way
	std::vector<SlotInfo> slots;                                      // answers under way
};

class Generator {
 public:
	Generator(const Model&, const GeneratorOptions&);
	~Generator(); // cancels answers under way
	// Queues all jobs or none. Throws ApiError 429 if the queue is full; 400 if a job has more answers than can run
	// at once, or all jobs together have more than the queue holds.
	void add(std::vector<Job>);
	void check_room(size_t jobs, size_t answers) const; // `answers` per job; throws what add() would throw
	void check_queue() const;                           // throws ApiError 429 if it is full
	void drop_idle();                                   // drops idle sessions before it returns; any thread may call
	void drop_gone(); // drops queued requests whose client is gone; any thread may call
	uint32_t longest_context() const { return longest_context_; } // upper bound on a session's tokens
	GeneratorStats stats() const;

 private:
	struct Active;
	using Group = std::vector<std::unique_ptr<Active>>; // answers to one prompt; the first one reads it
	void run();
	bool wait_for_work(); // false if the generator is ending
	void admit();
	bool may_run(const Scales&); // false while answers, or embeddings, with other scales of adapters are under way
	bool start(Job&);            // false if there is not enough memory now
	kvrun_status add_to_batch(const Job&, SessionPool::Lease&, Group&);
	kvrun_status add_one(const Job&, const Job& first, uint32_t kept, Active&, const Active& reader);
	size_t n_waiting() const;                         // answers in the queue; the mutex is held
	void room_for(size_t jobs, size_t answers) const; // as check_room(); the mutex is held
	void queue_for(size_t answers) const;             // as check_queue(); the mutex is held
	void take_gone(std::deque<Job>& dropped);         // from the queue; the mutex is held
	size_t n_under_way() const { return active_.size() + saving_.size(); }
	bool can_admit() const; // whether a queued job may start while others are saved; the mutex is held
	void step();
	void finish(std::unique_ptr<Active>, bool shared); // shared: other sessions held memory at the same time
	void save(std::unique_ptr<Active>);                // writes a named conversation to its file, on another thread
	void settle_saved();                               // settles answers whose conversations have been saved
	void settle(Active&);                              // tells the client
	void begin_again(Active&);
	void fail_all(const ApiError&);
	void publish();

	const Model& model_;
	const GeneratorOptions options_;
	const uint32_t longest_context_;
	mutable std::mutex mutex_; // protects the members up to drop_idle_
	std::condition_variable wake_;
	std::deque<Job> queue_;
	std::vector<Active*> saved_; // entries of saving_ that are to be settled
	GeneratorStats stats_;
	bool ending_ = false, drop_idle_ = false;
	bool wait_for_scales_ = false; // the next in the queue starts after others have ended the use of other scales

	// used only by the generation thread
	SessionPool pool_;
	BatchHandle batch_;
	std::vector<std::unique_ptr<Active>> active_;
	std::vector<std::unique_ptr<Active>> saving_; // owned by the saver until they are in saved_
	bool wait_for_memory_ = false;                // the next in the queue starts after an answer has ended
	Adapters::Use scales_use_;                    // of scales_, while answers are under way
	Scales scales_;
	Worker saver_; // writes conversations to their files
	std::thread thread_;
};

} // namespace kvrun::serve
