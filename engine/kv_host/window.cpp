// The cache of layers with a window.
#include "engine/kv_host/window.h"
#include "engine/core/error.h"
#include <algorithm>

namespace kvrun {

KvPlan make_window_plan(const KvShape& shape, Window window) {
	KV_ASSERT(window.tokens >= 1);
	KvPolicy p;
	p.name = "window";
	p.text = fmt::format("{} of {} tokens", window.chunked ? "chunk" : "window", window.tokens);
	p.regular.k.bits = p.regular.v.bits = 0;
	p.select.flush = window.chunked ? window.tokens : std::min(kLag, window.tokens);
	p.select.recent_keep = window.chunked ? 0 : window.tokens - 1; // and the token that makes it flush
	KvPlan plan = make_device_plan(p, shape);
	if (!window.chunked) plan.window = window.tokens;
	return plan;
}

size_t window_bytes(const KvPlan& plan, uint64_t n) {
	const Select& s = plan.policy.select;
	return bytes_at(plan, std::min<uint64_t>(n, uint64_t(s.recent_keep) + s.flush)).total();
}

} // namespace kvrun
