// The cache of layers with a sliding window.
#include "engine/kv_host/window.h"
#include "engine/core/error.h"

namespace kvrun {

KvPlan make_window_plan(const KvShape& shape, uint32_t window) {
	KV_ASSERT(window >= 1);
	KvPolicy p;
	p.name = "window";
	p.text = fmt::format("window of {} tokens", window);
	p.regular.k.bits = p.regular.v.bits = 0;
	p.select.recent_keep = window - 1, p.select.flush = 1;
	return make_device_plan(p, shape);
}

} // namespace kvrun
