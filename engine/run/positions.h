// Positions of tokens. Where the rotation has axes (Rope::axes; M-RoPE of Qwen2-VL, arXiv:2409.12191, section 2.1),
// rows of an image share a time and have a line and a column, counted from the position where the image begins; the
// text behind it goes on behind the largest of them. Elsewhere, and for text, a position is one number.
#pragma once
#include "engine/run/image_rows.h"
#include <algorithm>
#include <span>

namespace kvrun {

struct Position {
	uint32_t time, line, column;
	bool operator==(const Position&) const = default;
};

class PositionCounter {
 public:
	Position take(uint32_t token) { // the next one
		if (!is_image_row(token)) {
			const uint32_t at = next();
			*this = {};
			begin_ = at + 1;
			return {at, at, at};
		}
		const bool goes_on = last_ && image_row(token) == last_ + 1;
		if (!goes_on) begin_ = next(), line_ = column_ = lines_ = columns_ = 0;
		if (goes_on) column_ = begins_line(token) ? 0 : column_ + 1;
		if (goes_on && column_ == 0) ++line_;
		last_ = image_row(token), lines_ = line_ + 1, columns_ = std::max(columns_, column_ + 1);
		return {begin_, begin_ + line_, begin_ + column_};
	}
	uint32_t next() const { return begin_ + std::max(lines_, columns_); } // of a token of the vocabulary

 private:
	uint32_t begin_ = 0;                                       // of the image, or of what comes next
	uint32_t last_ = 0;                                        // image_row() of the latest row; 0: no image
	uint32_t line_ = 0, column_ = 0, lines_ = 0, columns_ = 0; // of the image
};

// The positions behind a text that grows.
class TextPositions {
 public:
	explicit TextPositions(bool axes) : axes_(axes) {}
	void cut() { counter_ = {}, counted_ = 0; } // to be called where tokens of the text change
	// Of a token of the vocabulary behind the text.
	uint32_t next(std::span<const uint32_t> text) { return axes_ ? counted(text).next() : uint32_t(text.size()); }
	// Appends those of tokens that come behind the text.
	void append(std::span<const uint32_t> text, std::span<const uint32_t> tokens, auto& out) {
		PositionCounter c = axes_ ? counted(text) : PositionCounter();
		for (uint32_t i = 0, at = uint32_t(text.size()); i < tokens.size(); ++i, ++at)
			out.push_back(axes_ ? c.take(tokens[i]) : Position{at, at, at});
	}

 private:
	const PositionCounter& counted(std::span<const uint32_t> text) {
		if (counted_ > text.size()) cut();
		for (; counted_ < text.size(); ++counted_) counter_.take(text[counted_]);
		return counter_;
	}
	bool axes_;
	PositionCounter counter_;
	size_t counted_ = 0; // tokens
};

} // namespace kvrun
