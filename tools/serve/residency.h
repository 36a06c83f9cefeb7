// Whether the model is in memory: it may leave where nobody uses it, and comes back for the next request.
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
	using Use = std::shared_ptr<const void>;    // while somebody holds one, the model stays
	enum class State : uint8_t { Loaded, Unloaded, Loading };

	explicit Residency(EngineHandle engine) : engine_(std::move(engine)) { note_use(); }
	void reload_with(Open open) { open_ = std::move(open); } // before any other thread knows of it

	// The engine; for those who hold a use, or call before unload() can be.
	kvrun_engine* engine() const { return engine_.get(); }
	// Loads the model where it is not there, which takes as long as at the start. Throws ApiError.
	Use use();
	// Calls f with the engine, unless it is unloaded: then returns false.
	template <class F> bool look(F f) {
		std::lock_guard lock(handle_);
		if (!engine_) return false;
		f(engine_.get());
		return true;
	}
	// Unloads a model that nobody has used for so long. before: frees what else keeps the engine.
	void unload(Clock::duration idle, const std::function<void()>& before);
	// Until it might be unloaded; more than nothing.
	Clock::duration idle_left(Clock::duration idle) const;
	State state() const { return state_; }

 private:
	void note_use() { last_use_ = Clock::now().time_since_epoch().count(); }
	std::mutex loading_; // held while it is loaded and unloaded
	std::mutex handle_;  // of engine_ where it may change; held for short times
	EngineHandle engine_;
	Open open_;
	std::atomic<size_t> uses_ = 0;
	std::atomic<Clock::rep> last_use_ = 0;
	std::atomic<State> state_ = State::Loaded;
};

} // namespace kvrun::serve
