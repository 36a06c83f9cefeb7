// Keeps track of whether the model is in memory: it can be unloaded when idle and is reloaded for the next request.
#include "tools/serve/residency.h"
#include <algorithm>

namespace kvrun::serve {

Residency::Use Residency::use() {
	{
		std::lock_guard lock(loading_);
		if (!engine_) {
			state_ = State::Loading;
			EngineHandle opened;
			try {
				opened = open_();
			} catch (...) {
				state_ = State::Unloaded; // the next request tries again
				throw;
			}
			std::lock_guard handle(handle_);
			engine_ = std::move(opened);
			++loads_;
			state_ = State::Loaded;
		}
		++uses_;
	}
	return Use(this, [this](const void*) {
		note_use();
		--uses_;
	});
}

Residency::Clock::duration Residency::idle_left(Clock::duration idle) const {
	if (state_ != State::Loaded || uses_ > 0) return idle;
	const Clock::time_point last{Clock::duration(last_use_)};
	return std::max<Clock::duration>(last + idle - Clock::now(), std::chrono::milliseconds(1));
}

void Residency::unload(Clock::duration idle, const std::function<void()>& before) {
	std::lock_guard lock(loading_);
	const Clock::time_point last{Clock::duration(last_use_)};
	if (!open_ || !engine_ || uses_ > 0 || Clock::now() < last + idle) return;
	before();
	EngineHandle gone;
	{
		std::lock_guard handle(handle_);
		gone = std::move(engine_);
	}
	gone.reset();
	state_ = State::Unloaded;
}

} // namespace kvrun::serve
