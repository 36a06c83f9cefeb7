// Scales of the model's LoRA adapters while it is served.
#include "tools/serve/adapters.h"
#include <algorithm>

namespace kvrun::serve {

constexpr std::chrono::milliseconds kLook{100}; // time between looks whether work is still wanted

void Adapters::start_with(std::vector<AdapterFacts> files) {
	files_ = std::move(files);
	for (const AdapterFacts& f : files_) start_.push_back(float(f.scale));
	usual_ = start_, current_ = start_;
}

Scales Adapters::usual() const {
	std::lock_guard lock(mutex_);
	return usual_;
}

void Adapters::set_usual(Scales s) {
	std::lock_guard lock(mutex_);
	usual_ = std::move(s);
}

bool Adapters::other_waits(const Scales& s) const {
	return std::ranges::any_of(waiting_, [&](const Scales* w) { return *w != s; });
}

bool Adapters::others_wait(const Scales& s) const {
	std::lock_guard lock(mutex_);
	return other_waits(s);
}

void Adapters::take(const Scales& s, Held& held) {
	if (loads_ != model_.loads()) loads_ = model_.loads(), current_ = start_; // the model has been loaded again
	if (current_ != s) {
		current_.reset();
		check(kvrun_engine_set_lora_scales(model_.engine(), s.data(), s.size()));
		current_ = s;
	}
	++uses_;
	held.of = this;
}

void Adapters::end() {
	{
		std::lock_guard lock(mutex_);
		if (--uses_) return;
	}
	free_.notify_all();
	on_free_();
}

Adapters::Use Adapters::try_use(const Scales& s) {
	auto held = std::make_shared<Held>();
	{
		std::lock_guard lock(mutex_);
		const bool mine = answers_ && answers_next_;
		if (in_use_with_others(s) || (!mine && other_waits(s))) {
			if (!answers_) answers_next_ = waiting_.empty();
			answers_ = s;
			return nullptr;
		}
		answers_.reset();
		take(s, *held);
	}
	free_.notify_all(); // those that let answers go first, with the same scales
	return held;
}

void Adapters::forget() {
	{
		std::lock_guard lock(mutex_);
		if (!answers_) return;
		answers_.reset();
	}
	free_.notify_all();
}

Adapters::Use Adapters::use(const Scales& s, const std::function<bool()>& unwanted) {
	auto held = std::make_shared<Held>();
	std::unique_lock lock(mutex_);
	waiting_.push_back(&s);
	try {
		bool gone = false;
		while (!gone && (in_use_with_others(s) || (answers_ && answers_next_ && answers_ != s))) {
			free_.wait_for(lock, kLook);
			gone = unwanted();
		}
		std::erase(waiting_, &s);
		answers_next_ = true; // before further ones
		if (!gone) {
			take(s, *held);
			return held;
		}
	} catch (...) {
		std::erase(waiting_, &s);
		lock.unlock();
		on_free_(); // answers may have waited for this
		throw;
	}
	lock.unlock();
	on_free_();
	return nullptr;
}

} // namespace kvrun::serve
