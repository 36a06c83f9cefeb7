// An answer of no tokens: the engine generates one, which is not shown.
#pragma once
#include "tools/serve/generator.h"

namespace kvrun::serve {

class Mute final : public Listener {
 public:
	explicit Mute(std::shared_ptr<Listener> to) : to_(std::move(to)) {}
	bool gone() const override { return to_->gone(); }
	void start(uint32_t prompt, uint32_t cached) override { to_->start(prompt, cached); }
	void begin() override { to_->begin(); }
	void reading(double done, double left) override { to_->reading(done, left); }
	void piece(std::string_view) override {}
	void end(const Ended& e) override {
		Ended none = e;
		none.result.answer_tokens = 0, none.result.reason = KVRUN_STOP_LENGTH;
		to_->end(none);
	}
	void fail(const ApiError& e) override { to_->fail(e); }

 private:
	const std::shared_ptr<Listener> to_;
};

} // namespace kvrun::serve
