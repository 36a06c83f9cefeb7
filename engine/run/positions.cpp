// Positions of tokens.
#include "engine/run/positions.h"

namespace kvrun {

Position PositionCounter::take(uint32_t token) {
	if (numbered_) return take_numbered(token);
	if (!is_image_row(token) || is_audio_row(token)) {
		const uint32_t at = next();
		*this = {};
		begin_ = at + 1;
		return {at, at, at};
	}
	const bool goes_on = last_ && image_row(token) == last_ + 1;
	if (!goes_on) {
		begin_ = next();
		line_ = column_ = columns_ = 0;
	} else if (marks_line(token)) {
		++line_, column_ = 0;
	} else {
		++column_;
	}
	last_ = image_row(token);
	lines_ = line_ + 1, columns_ = std::max(columns_, column_ + 1);
	return {begin_, begin_ + line_, begin_ + column_};
}

Position PositionCounter::take_numbered(uint32_t token) {
	const uint32_t at = begin_++;
	if (!is_image_row(token) || is_audio_row(token)) {
		last_ = 0;
		return {at, at, at, at};
	}
	if (!last_ || image_row(token) != last_ + 1) ++images_, line_ = column_ = 0;
	last_ = image_row(token);
	const bool ends = marks_line(token);
	if (ends && column_ == 0) return {at, at, at, at}; // around the lines
	const Position p = {at, line_, column_, images_ - 1};
	++column_;
	if (ends) ++line_, column_ = 0;
	return p;
}

const PositionCounter& TextPositions::counted(std::span<const uint32_t> text) {
	if (counted_ > text.size()) forget();
	for (; counted_ < text.size(); ++counted_) latest_[counted_ % kLatest] = counter_.take(text[counted_]);
	return counter_;
}

Position TextPositions::latest(std::span<const uint32_t> text, uint32_t n) {
	const uint32_t at = uint32_t(text.size()) - n;
	if (!axes_) return {at, at, at, at};
	counted(text);
	return latest_[at % kLatest];
}

uint32_t TextPositions::next(std::span<const uint32_t> text) {
	return axes_ ? counted(text).next() : uint32_t(text.size());
}

void TextPositions::append(std::span<const uint32_t> text, std::span<const uint32_t> tokens,
                           std::vector<Position>& out) {
	PositionCounter c = axes_ ? counted(text) : PositionCounter();
	for (uint32_t i = 0, at = uint32_t(text.size()); i < tokens.size(); ++i, ++at)
		out.push_back(axes_ ? c.take(tokens[i]) : Position{at, at, at});
}

} // namespace kvrun
