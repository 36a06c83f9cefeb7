// The engine on a thread of its own: takes commands, steps all answers as one batch, tells events.
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
	EngineThread();
	~EngineThread(); // stops what is under way, within a submission to the device
	EngineThread(const EngineThread&) = delete;

	void send(Command);        // never waits for the engine
	std::vector<Event> take(); // what happened since the last call

 private:
	void run();
	std::deque<Command> next_commands(bool wait);

	std::mutex mutex_; // of the next three
	std::condition_variable wake_;
	std::deque<Command> commands_;
	bool ending_ = false;
	std::mutex events_mutex_;
	std::vector<Event> events_;
	kvrun_canceller* loading_ = nullptr; // stops a load
	std::thread thread_;
};

} // namespace kvrun::desktop
