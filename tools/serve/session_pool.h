// Keeps sessions of ended answers, so that a prompt with the same beginning does not have to be read again.
#pragma once
#include "tools/serve/restore_choice.h"
#include "tools/serve/session_store.h"
#include <list>

namespace kvrun::serve {

struct SessionBytes { // of the KV cache, by kind
	uint64_t f16 = 0, codes = 0, params = 0, overhead = 0;
	uint64_t total() const { return f16 + codes + params + overhead; }
	SessionBytes& operator+=(const SessionBytes&);
};
SessionBytes session_bytes(kvrun_session*);

// Used by one thread.
class SessionPool {
 public:
	// ctx: context of new sessions. most: number of idle sessions to keep.
	SessionPool(const Model& model, uint32_t ctx, size_t most) : model_(model), ctx_(ctx), most_(most) {}

	struct Lease {
		SessionHandle session;
		uint32_t kept = 0; // prompt tokens that it already holds
		kvrun_status status = KVRUN_OK;
		std::string error = {}; // why there is no session, if status is an error
	};
	struct Kind {       // of sessions that can take each other's place
		std::string kv; // policy
		Scales scales;  // the engine's, when its tokens were read
		bool operator==(const Kind&) const = default;
	};
	// A session of this kind for the prompt: if `reuse`, that of the named conversation or one that holds the beginning
	// of the prompt; otherwise a new one. The engine has the kind's scales.
	Lease take(const Kind&, const std::vector<uint32_t>& prompt, bool reuse, const SessionStore::Hold* named);
	void put(const Kind&, SessionHandle, const SessionStore::Hold* named);
	void prompt_was_read(uint64_t tokens, double seconds) { choice_.read(tokens, seconds); }
	bool drop_oldest(); // false if there is none
	size_t size() const { return idle_.size(); }
	SessionBytes bytes() const;

 private:
	struct Idle {
		Kind kind;
		SessionHandle session;
		std::vector<uint32_t> tokens; // tokens in its cache
		std::string name;             // of its conversation; empty if none
	};
	SessionHandle named_session(const Kind&, size_t prompt_tokens, const SessionStore::Hold&);
	SessionHandle similar_session(const Kind&, const std::vector<uint32_t>& prompt);
	void fresh_session(const std::string& kv, Lease&) const;
	static constexpr uint32_t kCheckpoints = 2; // the ends of the last two prompts
	static constexpr size_t kWorthFork = 16;    // least number of common tokens to fork a session

	const Model& model_;
	const uint32_t ctx_;
	const size_t most_;
	RestoreChoice choice_;
	std::list<Idle> idle_; // most recently used first
};

} // namespace kvrun::serve
