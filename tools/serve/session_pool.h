// Sessions of answers that have ended, kept so that a prompt that begins like one of them is not read again.
#pragma once
#include "tools/serve/session_store.h"
#include <list>

namespace kvrun::serve {

struct SessionBytes { // of the KV cache, by kind
	uint64_t f16 = 0, codes = 0, params = 0, overhead = 0;
	uint64_t total() const { return f16 + codes + params + overhead; }
	SessionBytes& operator+=(const SessionBytes&);
};
SessionBytes session_bytes(kvrun_session*);
bool takes_drafts(kvrun_session*); // its answers may speculate

// Used by one thread.
class SessionPool {
 public:
	// ctx: of new sessions. most: idle sessions to keep.
	SessionPool(const Model& model, uint32_t ctx, size_t most) : model_(model), ctx_(ctx), most_(most) {}

	struct Lease {
		SessionHandle session;
		uint32_t kept = 0; // tokens of the prompt it holds already
		kvrun_status status = KVRUN_OK;
		std::string error = {}; // why there is no session, where status says so
	};
	// A session under this policy for the prompt: with `reuse` that of the named conversation, or one that holds the
	// prompt's beginning; else a new one.
	Lease take(const std::string& kv, const std::vector<uint32_t>& prompt, bool reuse, const SessionStore::Hold* named);
	void put(const std::string& kv, SessionHandle, const SessionStore::Hold* named);
	bool drop_oldest(); // false: there is none
	size_t size() const { return idle_.size(); }
	SessionBytes bytes() const;

 private:
	struct Idle {
		std::string kv;
		SessionHandle session;
		std::vector<uint32_t> tokens; // in its cache
		std::string name;             // of its conversation; empty: none
	};
	SessionHandle named_session(const std::string& kv, const SessionStore::Hold&);
	SessionHandle similar_session(const std::string& kv, const std::vector<uint32_t>& prompt);
	SessionHandle fresh_session(const std::string& kv, Lease&) const;
	static constexpr uint32_t kCheckpoints = 2; // the end of the prompt before the last one, too
	static constexpr size_t kWorthFork = 16;    // tokens in common that a session is forked for

	const Model& model_;
	const uint32_t ctx_;
	const size_t most_;
	std::list<Idle> idle_; // the one used last at the front
};

} // namespace kvrun::serve
