// Keeps sessions of ended answers, so that a prompt with the same beginning does not have to be read again.
#include "tools/serve/session_pool.h"
#include <algorithm>
#include <chrono>

namespace kvrun::serve {

SessionBytes& SessionBytes::operator+=(const SessionBytes& b) {
	f16 += b.f16, codes += b.codes, params += b.params, overhead += b.overhead;
	return *this;
}

SessionBytes session_bytes(kvrun_session* s) {
	const kvrun_session_info i = session_info(s);
	return {i.f16_bytes, i.code_bytes, i.param_bytes, i.overhead_bytes};
}

static size_t common_length(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
	return size_t(std::ranges::mismatch(a, b).in1 - a.begin());
}

// The conversation's session from memory or from its file; null if its kind or context differs, or if reading the
// prompt is faster than restoring the file.
SessionHandle SessionPool::named_session(const Kind& kind, size_t prompt_tokens, const SessionStore::Hold& named) {
	SessionHandle out;
	if (const auto i = std::ranges::find(idle_, named.name(), &Idle::name); i != idle_.end()) {
		if (i->kind.scales == kind.scales) out = std::move(i->session);
		idle_.erase(i);
		if (!out) return out;
	} else {
		const uint64_t bytes = named.bytes();
		if (!choice_.restores(bytes, prompt_tokens)) return {};
		kvrun_restore_options o = KVRUN_RESTORE_OPTIONS_INIT;
		o.checkpoints = kCheckpoints;
		const auto start = std::chrono::steady_clock::now();
		// if the file is damaged or missing, the prompt is read from the request
		if (create(out, kvrun_session_restore_with, model_.engine(), named.path().c_str(), &o) != KVRUN_OK) return {};
		choice_.restored(bytes, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
	}
	const kvrun_session_info i = session_info(out.get());
	return kind.kv == i.kv && (!ctx_ || i.ctx == ctx_) ? std::move(out) : SessionHandle();
}

SessionHandle SessionPool::similar_session(const Kind& kind, const std::vector<uint32_t>& prompt) {
	auto best = idle_.end();
	size_t common = 0;
	for (auto i = idle_.begin(); i != idle_.end(); ++i) {
		const size_t n = i->kind == kind ? common_length(i->tokens, prompt) : 0;
		if (n > common) best = i, common = n;
	}
	SessionHandle out;
	if (best != idle_.end() && common == best->tokens.size() && best->name.empty()) { // the conversation goes on
		out = std::move(best->session);
		idle_.erase(best);
	} else if (best != idle_.end() && common >= kWorthFork) {
		(void)create(out, kvrun_session_fork, best->session.get()); // without memory for it, a new session is opened
		idle_.splice(idle_.begin(), idle_, best);
	}
	return out;
}

void SessionPool::fresh_session(const std::string& kv, Lease& lease) const {
	kvrun_session_options o = KVRUN_SESSION_OPTIONS_INIT;
	o.kv = kv.c_str();
	o.ctx = ctx_;
	o.checkpoints = kCheckpoints;
	lease.kept = 0;
	lease.session.reset(); // frees its memory first
	lease.status = create(lease.session, kvrun_session_open, model_.engine(), &o);
	lease.error = kvrun_last_error();
}

SessionPool::Lease SessionPool::take(const Kind& kind, const std::vector<uint32_t>& prompt, bool reuse,
                                     const SessionStore::Hold* named) {
	Lease lease;
	const auto holds_some = [&] { // truncates the session to what it shares with the prompt
		return lease.session &&
		       kvrun_session_keep_common(lease.session.get(), prompt.data(), prompt.size(), &lease.kept) == KVRUN_OK;
	};
	if (reuse && named) {
		lease.session = named_session(kind, prompt.size(), *named);
		if (holds_some() && lease.kept > 0) return lease;
	}
	if (reuse) lease.session = similar_session(kind, prompt);
	if (!holds_some()) fresh_session(kind.kv, lease);
	return lease;
}

void SessionPool::put(const Kind& kind, SessionHandle session, const SessionStore::Hold* named) {
	std::vector<uint32_t> tokens;
	const kvrun_status s = fill(tokens, 0, [&](uint32_t* to, size_t room, size_t* n) {
		return kvrun_session_tokens(session.get(), to, room, n);
	});
	const std::string name = named ? named->name() : "";
	if (named) idle_.remove_if([&](const Idle& i) { return i.name == name; });
	if (s != KVRUN_OK || tokens.empty() || most_ == 0) return;
	idle_.push_front({kind, std::move(session), std::move(tokens), name});
	if (idle_.size() > most_) drop_oldest();
}

bool SessionPool::drop_oldest() {
	if (idle_.empty()) return false;
	idle_.pop_back();
	return true;
}

SessionBytes SessionPool::bytes() const {
	SessionBytes sum;
	for (const Idle& i : idle_) sum += session_bytes(i.session.get());
	return sum;
}

} // namespace kvrun::serve
