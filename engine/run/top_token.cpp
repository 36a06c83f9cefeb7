// The most likely token of rows of logits.
#include "engine/run/top_token.h"
#include <algorithm>

namespace kvrun {

void TopToken::read(uint32_t first, uint32_t n) {
	first_ = first, n_ = n;
	if (lists_) return runner_.read_candidates(first, n, 1, list_);
	logits_.resize(size_t(n) * runner_.config().vocab);
	runner_.read_logits(first, n, logits_);
}

uint32_t TopToken::get(uint32_t i) {
	if (lists_) {
		list_.arrived(runner_.config().vocab);
		const std::span<const Logit> top = list_.of(i, 1);
		if (!top.empty()) return std::ranges::max_element(top, {}, &Logit::value)->id;
	}
	blocks_.scan(logits(first_ + i));
	return uint32_t(blocks_.first_max());
}

std::span<const float> TopToken::logits(uint32_t row) {
	const size_t vocab = runner_.config().vocab;
	if (!lists_ && row >= first_ && row - first_ < n_) return std::span(logits_).subspan((row - first_) * vocab, vocab);
	one_.resize(vocab);
	runner_.read_logits(row, 1, one_);
	runner_.backend().submit();
	runner_.backend().wait();
	return one_;
}

} // namespace kvrun
