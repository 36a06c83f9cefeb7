// Keeps track of whether the model is in memory: it can be unloaded when idle and is reloaded for the next request.
#pragma once
#include "tools/api_call.h"
#include "tools/serve/error.h"
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

namespace kvrun::serve {

// Any thread may call.
class Residency {
 public:
	using Clock = std::chrono::steady_clock;
	using Open = std::function<EngineHandle()>; // throws ApiError
	using Use = std::shared_ptr<const void>;    // the model stays loaded while one exists
	enum class State : uint8_t { Loaded, Unloaded, Loading };

	explicit Residency(EngineHandle engine) : engine_(std::move(engine)) { note_use(); }
	void reload_with(Open open) { open_ = std::move(open); } // call before other threads use this object

	// The engine. The caller must hold a Use, or call before unload() can be called.
	kvrun_engine* engine() const { return engine_.get(); }
	// Loads the model if it is unloaded, which takes as long as at startup. Throws ApiError.
	Use use();
	// Calls f with the engine; returns false if it is unloaded.
	template <class F> bool look(F f) {
		std::lock_guard lock(handle_);
		if (!engine_) return false;
		f(engine_.get());
		return true;
	}
	// Unloads the model if it was unused for `idle`. before: is called first to free what else refers to the engine.
	void unload(Clock::duration idle, const std::function<void()>& before);
	// Time until the model may be unloaded; always positive.
	Clock::duration idle_left(Clock::duration idle) const;
	State state() const { return state_; }
	uint64_t loads() const { return loads_; } // times that the model was loaded again

 private:
	void note_use() { last_use_ = Clock::now().time_since_epoch().count(); }
	std::mutex loading_; // held while the model is being loaded or unloaded
	std::mutex handle_;  // protects changes of engine_; held only briefly
	EngineHandle engine_;
	Open open_;
	std::atomic<size_t> uses_ = 0;
	std::atomic<uint64_t> loads_ = 0;
	std::atomic<Clock::rep> last_use_ = 0;
	std::atomic<State> state_ = State::Loaded;
};

} // namespace kvrun::serve
