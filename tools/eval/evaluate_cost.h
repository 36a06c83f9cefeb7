// Time and memory of the sequences of an evaluation.
#pragma once
#include "tools/eval/evaluate.h"
#include <chrono>

namespace kvrun {

class CostMeter {
 public:
	struct Stopped {}; // thrown if goes_on() returned false
	explicit CostMeter(std::function<bool()> goes_on = {}) : goes_on_(std::move(goes_on)) {}
	void ask() const { // whether to go on
		if (goes_on_ && !goes_on_()) throw Stopped();
	}
	CostMeter apart() const { return CostMeter(goes_on_); } // that counts something else
	std::span<const float> prefill(Session& s, std::span<const uint32_t> tokens) {
		const auto start = Clock::now();
		const std::span<const float> logits =
		    s.prefill(tokens, {.progress = [this](const Prefill&) { return !goes_on_ || goes_on_(); }});
		if (logits.empty()) throw Stopped();
		cost_.prefill_s += since(start);
		cost_.prefill_tokens += tokens.size();
		return logits;
	}
	std::span<const float> decode(Session& s, uint32_t token) {
		ask();
		const auto start = Clock::now();
		const std::span<const float> logits = s.decode(token);
		cost_.decode_s += since(start);
		++cost_.decode_tokens;
		return logits;
	}
	void end(Session& s) { // call at the end of a sequence, when its cache is largest
		const KvBytes b = s.kv_bytes();
		const double f16 = double(s.f16_bytes()); // 0 where no layer attends: as stored_bits(), nothing is all f16
		bits_ += f16 > 0 ? 16 * double(b.total()) / f16 : 16;
		f16_ += f16 > 0 ? double(b.f16) / f16 : 1;
		if (++sequences_ == 1) first_ = cost_;
	}
	EvalCost cost() const {
		EvalCost c = cost_;
		if (sequences_ > 1) {
			c.first_prefill_s = first_.prefill_s, c.first_decode_s = first_.decode_s;
			c.first_prefill_tokens = first_.prefill_tokens, c.first_decode_tokens = first_.decode_tokens;
		}
		c.stored_bits = sequences_ ? bits_ / double(sequences_) : 0;
		c.f16_share = sequences_ ? f16_ / double(sequences_) : 0;
		return c;
	}

 private:
	using Clock = std::chrono::steady_clock;
	static double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }
	std::function<bool()> goes_on_;
	EvalCost cost_, first_;
	double bits_ = 0, f16_ = 0;
	uint64_t sequences_ = 0;
};

} // namespace kvrun
