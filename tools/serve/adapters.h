// Scales of the model's LoRA adapters while it is served. Work with the same scales runs together; work with others
// waits until that has ended, because the engine has one set of scales.
#pragma once
#include "tools/adapter_facts.h"
#include "tools/serve/residency.h"
#include <condition_variable>

namespace kvrun::serve {

using Scales = std::vector<float>; // of all adapters, in the order of --lora; empty without adapters

// Any thread may call.
class Adapters {
 public:
	using Use = std::shared_ptr<const void>; // as long as one exists, the engine keeps these scales

	explicit Adapters(const Residency& model) : model_(model) {}
	void start_with(std::vector<AdapterFacts>); // call before other threads use this object
	// Is called, without locks, when the last Use has ended. Call before other threads use this object.
	void on_free(std::function<void()> f) { on_free_ = std::move(f); }

	const std::vector<AdapterFacts>& files() const { return files_; } // with the scales of the start
	Scales usual() const;                                             // of requests that give none
	void set_usual(Scales);
	// Both of these: the caller holds a Residency::Use. Throw ApiError if the engine cannot take the scales.
	Use try_use(const Scales&); // null while other scales are in use, or use() waits for others
	// Waits while other scales are in use. Null if `unwanted` became true.
	Use use(const Scales&, const std::function<bool()>& unwanted);
	bool others_wait(const Scales&) const; // whether use() waits for scales that are not these

 private:
	Use take(const Scales&); // the mutex is held, and other scales are not in use
	const Residency& model_;
	std::vector<AdapterFacts> files_;
	std::function<void()> on_free_;
	mutable std::mutex mutex_; // protects the members below
	std::condition_variable free_;
	Scales start_, usual_, current_; // current_: the engine's; of another size if they could not be set
	std::vector<const Scales*> waiting_;
	size_t uses_ = 0;
	uint64_t loads_ = 0; // Residency::loads() of the engine that has current_
};

} // namespace kvrun::serve
