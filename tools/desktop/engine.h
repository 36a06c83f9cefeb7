// The engine on its own thread: takes commands, steps all answers as one batch, reports events.
#pragma once
#include "tools/desktop/protocol.h"
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

struct kvrun_canceller;

namespace kvrun::desktop {

class EngineThread {
 public:
	// caches: folder for caches of conversations (SavedCaches); empty: they are not saved.
	explicit EngineThread(std::string caches = {});
	~EngineThread(); // stops active answers within one submission to the device, and saves caches
	EngineThread(const EngineThread&) = delete;

	void send(Command);        // does not wait for the engine
	std::vector<Event> take(); // events since the last call

 private:
	void run();
	// Waits for commands for so many seconds; 0: not at all.
	std::deque<Command> next_commands(double seconds);

	std::mutex mutex_; // protects the next three
	std::condition_variable wake_;
	std::deque<Command> commands_;
	bool ending_ = false;
	std::mutex events_mutex_;
	std::vector<Event> events_;
	kvrun_canceller* loading_ = nullptr; // stops a load
	const std::string caches_;
	std::thread thread_;
};

} // namespace kvrun::desktop
