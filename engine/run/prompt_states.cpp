// Hidden states of a prompt for a drafter.
#include "engine/run/prompt_states.h"
#include <algorithm>

namespace kvrun {

uint32_t PromptStates::last_layer() const { return std::ranges::max(hook_.layers); }

void PromptStates::begin_block(uint32_t first, uint32_t n) {
	first_ = std::max(hook_.first, first);
	n_ = first + n - std::min(first_, first + n);
	in_block_ = first_ - first;
	handed_ = leaving_ = 0;
	for (size_t i = 0; i < read_.size(); ++i) read_[i].resize(is_output(i) ? 0 : size_t(n_) * runner_.config().dim);
}

void PromptStates::enter(uint32_t l, const View& x, uint32_t first) {
	const size_t dim = runner_.config().dim;
	const uint32_t from = std::max(first, first_), to = std::min(first + x.shape[0], first_ + n_);
	if (from >= to) return;
	const View wanted = rows(x, from - first, to - from);
	for (size_t i = 0; i < read_.size(); ++i)
		if (hook_.layers[i] == l)
			runner_.backend().read(
			    *wanted.buf, wanted.at,
			    std::as_writable_bytes(std::span(read_[i]).subspan((from - first_) * dim, (to - from) * dim)));
}

uint32_t PromptStates::leave(const View& x, uint32_t most) {
	leaving_ = std::min(most, n_ - handed_);
	if (!leaving_) return 0;
	const uint32_t from = in_block_ + handed_;
	const View out = runner_.merge_streams(x, from, leaving_, /*decode=*/false);
	for (size_t i = 0; i < read_.size(); ++i)
		if (is_output(i)) runner_.read_rows(out, read_[i]);
	return leaving_;
}

void PromptStates::arrived() {
	if (!leaving_) return;
	const size_t dim = runner_.config().dim;
	joined_.clear();
	for (size_t row = 0; row < leaving_; ++row)
		for (size_t i = 0; i < read_.size(); ++i) {
			const auto from = read_[i].begin() + ptrdiff_t((is_output(i) ? row : handed_ + row) * dim);
			joined_.insert(joined_.end(), from, from + ptrdiff_t(dim));
		}
	const uint32_t first = first_ + handed_;
	handed_ += std::exchange(leaving_, 0);
	hook_.deliver(first, joined_);
}

} // namespace kvrun
