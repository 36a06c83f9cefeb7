// The cache of layers with a window.
#include "engine/kv_host/window.h"
#include "engine/core/error.h"

namespace kvrun {

KvPlan make_window_plan(const KvShape& shape, Window window) {
	KV_ASSERT(window.tokens >= 1);
	KvPolicy p;
	p.name = "window";
	p.text = fmt::format("{} of {} tokens", window.chunked ? "chunk" : "window", window.tokens);
	p.regular.k.bits = p.regular.v.bits = 0;
	p.select.flush = window.chunked ? window.tokens : 1;
	p.select.recent_keep = window.tokens - p.select.flush;
	return make_device_plan(p, shape);
}

} // namespace kvrun
