// Scales of the model's LoRA adapters while it is served.
#include "tools/serve/adapters.h"
#include <algorithm>

namespace kvrun::serve {

constexpr std::chrono::milliseconds kLook{100}; // time between looks whether work is still wanted

void Adapters::start_with(std::vector<AdapterFacts> files) {
	files_ = std::move(files);
	for (const AdapterFacts& f : files_) start_.push_back(float(f.scale));
	usual_ = current_ = start_;
}

Scales Adapters::usual() const {
	std::lock_guard lock(mutex_);
	return usual_;
}

void Adapters::set_usual(Scales s) {
	std::lock_guard lock(mutex_);
	usual_ = std::move(s);
}

bool Adapters::others_wait(const Scales& s) const {
	std::lock_guard lock(mutex_);
	return std::ranges::any_of(waiting_, [&](const Scales* w) { return *w != s; });
}

Adapters::Use Adapters::take(const Scales& s) {
	if (loads_ != model_.loads()) loads_ = model_.loads(), current_ = start_; // the model has been loaded again
	if (current_ != s) {
		current_.clear(); // unknown if the call fails
		check(kvrun_engine_set_lora_scales(model_.engine(), s.data(), s.size()));
		current_ = s;
	}
	++uses_;
	return Use(this, [this](const void*) {
		{
			std::lock_guard lock(mutex_);
			if (--uses_) return;
		}
		free_.notify_all();
		if (on_free_) on_free_();
	});
}

Adapters::Use Adapters::try_use(const Scales& s) {
	std::lock_guard lock(mutex_);
	const auto other = [&](const Scales* w) { return *w != s; };
	if ((uses_ && current_ != s) || std::ranges::any_of(waiting_, other)) return nullptr;
	return take(s);
}

Adapters::Use Adapters::use(const Scales& s, const std::function<bool()>& unwanted) {
	std::unique_lock lock(mutex_);
	waiting_.push_back(&s);
	const auto leave = [&] { waiting_.erase(std::ranges::find(waiting_, &s)); };
	while (uses_ && current_ != s) {
		free_.wait_for(lock, kLook);
		if (!unwanted()) continue;
		leave();
		lock.unlock();
		if (on_free_) on_free_(); // others may have been kept back for this one
		return nullptr;
	}
	leave();
	return take(s);
}

} // namespace kvrun::serve
