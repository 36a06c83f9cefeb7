// One thread that runs tasks in their order.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kvrun::serve {

class Worker {
 public:
	Worker();
	~Worker(); // drops tasks that have not begun
	// unwanted: returns true if nobody waits for the task any more; empty if somebody always does.
	void post(std::function<void()> task, std::function<bool()> unwanted = {});
	void drop_unwanted(); // drops unwanted tasks that have not begun, with all they hold

 private:
	struct Task {
		std::function<void()> run;
		std::function<bool()> unwanted;
	};
	std::mutex mutex_;
	std::condition_variable wake_;
	std::deque<Task> tasks_;
	bool ending_ = false;
	std::thread thread_;
};

} // namespace kvrun::serve
