// Sessions of answers that have ended, kept so that a prompt that begins like one of them is not read again.
#include "tools/serve/session_pool.h"
#include <algorithm>

namespace kvrun::serve {

SessionBytes& SessionBytes::operator+=(const SessionBytes& b) {
	f16 += b.f16, codes += b.codes, params += b.params, overhead += b.overhead;
	return *this;
}

SessionBytes session_bytes(kvrun_session* s) {
	kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
	if (kvrun_session_get_info(s, &i) != KVRUN_OK) return {};
	return {i.f16_bytes, i.code_bytes, i.param_bytes, i.overhead_bytes};
}

static size_t common_length(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
	return size_t(std::ranges::mismatch(a, b).in1 - a.begin());
}

SessionPool::Lease SessionPool::take(const std::string& kv, const std::vector<uint32_t>& prompt, bool reuse) {
	auto best = idle_.end();
	size_t common = 0;
	for (auto i = idle_.begin(); i != idle_.end(); ++i) {
		const size_t n = reuse && i->kv == kv ? common_length(i->tokens, prompt) : 0;
		if (n > common) best = i, common = n;
	}
	Lease lease;
	if (best != idle_.end() && common == best->tokens.size()) { // the conversation goes on
		lease.session = std::move(best->session);
		idle_.erase(best);
	} else if (best != idle_.end() && common >= kWorthFork) {
		kvrun_session* fork = nullptr;
		if (kvrun_session_fork(&fork, best->session.get()) == KVRUN_OK) lease.session = SessionHandle(fork);
		idle_.splice(idle_.begin(), idle_, best);
	}
	if (lease.session &&
	    kvrun_session_keep_common(lease.session.get(), prompt.data(), prompt.size(), &lease.kept) == KVRUN_OK)
		return lease;
	kvrun_session_options o = KVRUN_SESSION_OPTIONS_INIT;
	o.kv = kv.c_str();
	o.ctx = ctx_;
	o.checkpoints = 2; // the end of the prompt before the last one, too
	kvrun_session* fresh = nullptr;
	lease.kept = 0;
	lease.status = kvrun_session_open(&fresh, model_.engine(), &o);
	lease.error = kvrun_last_error();
	lease.session = SessionHandle(fresh);
	return lease;
}

void SessionPool::put(const std::string& kv, SessionHandle session) {
	std::vector<uint32_t> tokens;
	const kvrun_status s = fill_vector(tokens, 0, [&](uint32_t* to, size_t room, size_t* n) {
		return kvrun_session_tokens(session.get(), to, room, n);
	});
	if (s != KVRUN_OK || tokens.empty() || most_ == 0) return;
	idle_.push_front({kv, std::move(session), std::move(tokens)});
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
