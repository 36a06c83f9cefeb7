// The objects behind the handles of the C API.
#pragma once
#include "engine/api/handles.h"
#include "engine/api/options.h"
#include "engine/core/log_scope.h"
#include "engine/run/batch.h"
#include "engine/run/draft_model.h"
#include <condition_variable>
#include <thread>

namespace kvrun::api {

// A mutex that serves threads in order of arrival, so that a thread that generates cannot starve others.
class FairMutex {
 public:
	void lock();
	void unlock();

 private:
	std::mutex mutex_;
	std::condition_variable turn_;
	uint64_t next_ = 0, serving_ = 0;
};

// A thread's turn on an engine. Log lines of the thread go to the engine's log.
class Turn {
 public:
	explicit Turn(Log& log) : log_(log) {}
	// Throws Failure{EBUSY} if the calling thread has the turn: it is in a callback that is called during it.
	void lock() {
		if (is_mine()) refuse(KVRUN_EBUSY, "this thread is in a callback of the engine's work; call it after that");
		mutex_.lock();
		owner_ = std::this_thread::get_id();
		scope_.emplace(log_);
	}
	void unlock() {
		scope_.reset();
		owner_ = std::thread::id();
		mutex_.unlock();
	}
	bool is_mine() const { return owner_ == std::this_thread::get_id(); }

 private:
	FairMutex mutex_;
	std::atomic<std::thread::id> owner_; // of the turn; none: std::thread::id()
	Log& log_;
	std::optional<LogScope> scope_; // on the thread that has the turn
};

// Takes a turn unless the calling thread has it already: for what only reads, and for destructors, which callbacks of
// the turn may run.
class SharedTurn {
 public:
	explicit SharedTurn(Turn& turn) : turn_(turn.is_mine() ? nullptr : &turn) {
		if (turn_) turn_->lock();
	}
	~SharedTurn() {
		if (turn_) turn_->unlock();
	}
	SharedTurn(const SharedTurn&) = delete;

 private:
	Turn* turn_;
};

struct EngineObject {
	Log log;                                 // declared before the engine, which logs until it is destroyed
	std::unique_ptr<DraftModel> draft_model; // null: drafts are looked up
	std::unique_ptr<Engine> engine;
	DeviceInfo device;
	std::vector<std::pair<std::string, std::string>> metadata; // key, value as text
	Turn turn = Turn(log); // held during one piece of work on the device, and during changes of the engine's memory
};

// Throws the error for an engine that has no sessions, because its model encodes texts.
inline const std::shared_ptr<EngineObject>& with_sessions(const std::shared_ptr<EngineObject>& e) {
	if (e->engine->text_encoder()) fail_encoder(e->engine->file().name());
	return e;
}

struct SessionObject {
	SessionObject(std::shared_ptr<EngineObject> e) : engine(std::move(e)) {}
	~SessionObject();
	std::shared_ptr<EngineObject> engine;
	std::unique_ptr<Session> session;
	std::atomic<bool> used = false;            // by a call or a batch
	std::shared_ptr<grammar::Grammar> grammar; // for answers that begin from now on; null: none
};

struct GrammarObject {
	GrammarObject(const std::shared_ptr<EngineObject>& e, std::shared_ptr<grammar::Grammar> g)
	    : engine(e), grammar(std::move(g)) {}
	std::weak_ptr<EngineObject> engine; // a grammar does not keep its engine alive
	std::shared_ptr<grammar::Grammar> grammar;
};

// Marks a session as in use during one call or one answer. Throws Failure{EBUSY} if it is in use.
class InUse {
 public:
	explicit InUse(std::shared_ptr<SessionObject>);
	explicit InUse(kvrun_session*);
	InUse(InUse&& other) noexcept : session_(std::move(other.session_)) {}
	InUse& operator=(InUse&&) = delete;
	~InUse();
	Session& operator*() const { return *session_->session; }
	Session* operator->() const { return session_->session.get(); }
	EngineObject& engine() const { return *session_->engine; }
	const std::shared_ptr<SessionObject>& object() const { return session_; }

 private:
	std::shared_ptr<SessionObject> session_;
};

// Active answers, with their callbacks and cancellers.
class Answers {
 public:
	explicit Answers(std::shared_ptr<EngineObject>);
	~Answers();

	uint32_t add(InUse, std::span<const uint32_t> prompt, const kvrun_generate_options&);
	uint32_t add_fork(InUse, uint32_t of, const kvrun_generate_options&); // another answer to the prompt of `of`
	bool step(); // returns whether any answer is active; callbacks run before it returns
	size_t n_active() const;
	bool done(uint32_t id) const;
	void on_logits(uint32_t id, kvrun_logits_cb, void* payload);
	// Frees the session and fills in *out. Then throws if an error ended the answer, or Failure{ECANCELLED, EUSER}.
	void take(uint32_t id, kvrun_generate_result* out);
	const std::shared_ptr<EngineObject>& engine() const { return engine_; }

 private:
	struct Answer;
	template <class F> uint32_t begin(InUse, const kvrun_generate_options&, F add_stream);
	Answer& find(uint32_t id) const;
	void stop_cancelled();
	void deliver(Answer&);
	std::shared_ptr<EngineObject> engine_;
	std::map<uint32_t, std::unique_ptr<Answer>> answers_; // by id
	std::unique_ptr<Batch> batch_;                        // destroyed before the answers' sessions
};

struct BatchObject {
	explicit BatchObject(std::shared_ptr<EngineObject> e) : answers(std::move(e)) {}
	Answers answers;
	std::atomic<bool> used = false; // by a call
};

struct DevicesObject {
	std::vector<DeviceReport> reports;
};

Handles<kvrun_engine, EngineObject, 1>& engines();
Handles<kvrun_session, SessionObject, 2>& sessions();
Handles<kvrun_batch, BatchObject, 3>& batches();
Handles<kvrun_devices, DevicesObject, 4>& device_lists();
Handles<kvrun_grammar, GrammarObject, 6>& grammars();

} // namespace kvrun::api
