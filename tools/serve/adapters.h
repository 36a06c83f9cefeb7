// Scales of the model's LoRA adapters while it is served. Work with the same scales runs together; work with others
// waits until that has ended, because the engine has one set of scales.
#pragma once
#include "tools/adapter_facts.h"
#include "tools/serve/residency.h"
#include <condition_variable>
#include <optional>

namespace kvrun::serve {

using Scales = std::vector<float>; // of all adapters, in the order of --lora; empty without adapters

// Any thread may call. Answers (try_use()) and embeddings (use()) that wait for different scales take turns.
class Adapters {
 public:
	using Use = std::shared_ptr<const void>; // as long as one exists, the engine keeps these scales

	explicit Adapters(const Residency& model) : model_(model) {}
	void start_with(std::vector<AdapterFacts>); // call before other threads use this object
	// Is called, without locks, when try_use() may succeed that has failed. Call before other threads use this object.
	void on_free(std::function<void()> f) { on_free_ = std::move(f); }

	const std::vector<AdapterFacts>& files() const { return files_; } // with the scales of the start
	Scales usual() const;                                             // of requests that give none
	void set_usual(Scales);
	// Both of these: the caller holds a Residency::Use. Throw ApiError if the engine cannot take the scales.
	Use try_use(const Scales&); // null while it has to wait for others: call it again after on_free(), or forget()
	// Waits for others. Null if `unwanted` became true.
	Use use(const Scales&, const std::function<bool()>& unwanted);
	void forget();                         // what try_use() waits for is no longer wanted
	bool others_wait(const Scales&) const; // whether use() waits for scales that are not these

 private:
	struct Held { // ends a use
		Adapters* of = nullptr;
		~Held() {
			if (of) of->end();
		}
	};
	bool in_use_with_others(const Scales& s) const { return uses_ && current_ != s; }
	bool other_waits(const Scales&) const;
	void take(const Scales&, Held&); // sets the scales; the mutex is held
	void end();
	const Residency& model_;
	std::vector<AdapterFacts> files_;
	std::function<void()> on_free_ = [] {};
	mutable std::mutex mutex_; // protects the members below
	std::condition_variable free_;
	Scales start_, usual_;
	std::optional<Scales> current_;      // the engine's; nullopt: unknown
	std::vector<const Scales*> waiting_; // of use()
	std::optional<Scales> answers_;      // that try_use() waits for
	bool answers_next_ = false;          // before those of use() that come now
	size_t uses_ = 0;
	uint64_t loads_ = 0; // Residency::loads() of the engine that has current_
};

} // namespace kvrun::serve
