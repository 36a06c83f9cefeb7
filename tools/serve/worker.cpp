// One thread that runs tasks in their order.
#include "tools/serve/worker.h"
#include <algorithm>

namespace kvrun::serve {

Worker::Worker()
    : thread_([this] {
	      for (;;) {
		      std::unique_lock lock(mutex_);
		      wake_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
		      if (ending_) return;
		      const Task task = std::move(tasks_.front());
		      tasks_.pop_front();
		      lock.unlock();
		      task.run();
	      }
      }) {}

Worker::~Worker() {
	{
		std::lock_guard lock(mutex_);
		ending_ = true;
	}
	wake_.notify_all();
	thread_.join();
}

void Worker::post(std::function<void()> task, std::function<bool()> unwanted) {
	{
		std::lock_guard lock(mutex_);
		tasks_.push_back({std::move(task), std::move(unwanted)});
	}
	wake_.notify_all();
}

void Worker::drop_unwanted() {
	std::deque<Task> dropped; // destroyed after the lock is released
	std::lock_guard lock(mutex_);
	const auto first =
	    std::stable_partition(tasks_.begin(), tasks_.end(), [](const Task& t) { return !t.unwanted || !t.unwanted(); });
	std::move(first, tasks_.end(), std::back_inserter(dropped));
	tasks_.erase(first, tasks_.end());
}

} // namespace kvrun::serve
