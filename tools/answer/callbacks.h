// The callbacks of one answer, for kvrun_generate() and batches.
#pragma once
#include "engine/kvrun.h"
#include <exception>
#include <span>
#include <string_view>

namespace kvrun {

// An exception must not pass through the library: it ends the answer, and rethrow() throws it again.
class AnswerCallbacks {
 public:
	AnswerCallbacks() = default;
	AnswerCallbacks(const AnswerCallbacks&) = delete;
	virtual ~AnswerCallbacks() = default;
	// The answer points to this object until it has ended.
	void set_on(kvrun_generate_options& o) {
		o.on_token = [](uint32_t token, const char* text, size_t length, void* self) {
			return of(self).guard([&](AnswerCallbacks& a) { return a.token(token, {text, length}); });
		};
		o.on_prefill = [](double done, double seconds_left, void* self) {
			return of(self).guard([&](AnswerCallbacks& a) { return a.reading(done, seconds_left); });
		};
		o.payload = this;
	}
	// For kvrun_batch_on_logits().
	static int on_logits(float* logits, size_t vocab, void* self) {
		return of(self).guard([&](AnswerCallbacks& a) { return a.logits({logits, vocab}); });
	}
	void rethrow() const {
		if (thrown_) std::rethrow_exception(thrown_);
	}

 protected:
	// Each returns false to end the answer.
	virtual bool token(uint32_t token, std::string_view text) = 0; // as kvrun_token_cb
	virtual bool reading(double done, double seconds_left) = 0;    // progress of the prompt
	virtual bool logits(std::span<float>) { return true; }

 private:
	static AnswerCallbacks& of(void* self) { return *static_cast<AnswerCallbacks*>(self); }
	template <class F> int guard(F f) noexcept {
		try {
			return f(*this) ? 0 : 1;
		} catch (...) {
			thrown_ = std::current_exception();
			return 1;
		}
	}
	std::exception_ptr thrown_;
};

} // namespace kvrun
