// The most likely token of one row of logits.
#include "engine/run/top_token.h"
#include <algorithm>

namespace kvrun {

void TopToken::read() {
	logits_.clear();
	if (lists_) return runner_.read_candidates(1, 1, list_);
	logits_.resize(runner_.config().vocab);
	runner_.read_logits(0, 1, logits_);
}

uint32_t TopToken::get() {
	if (lists_) {
		list_.arrived(runner_.config().vocab);
		const std::span<const Logit> top = list_.of(0, 1);
		if (!top.empty()) return std::ranges::max_element(top, {}, &Logit::value)->id;
	}
	blocks_.scan(logits());
	return uint32_t(blocks_.first_max());
}

std::span<const float> TopToken::logits() {
	if (!logits_.empty()) return logits_;
	logits_.resize(runner_.config().vocab);
	runner_.read_logits(0, 1, logits_);
	runner_.backend().submit();
	runner_.backend().wait();
	return logits_;
}

} // namespace kvrun
