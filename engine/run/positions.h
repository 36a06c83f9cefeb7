// Positions of tokens. Where the rotation has axes (Rope::axes; M-RoPE of Qwen2-VL, arXiv:2409.12191, section 2.1),
// rows of an image share a time and have a line and a column, counted from the position where the image begins; the
// text behind it goes on behind the largest of them. RopeAxes::numbered: rows have times of their own, lines and
// columns count from 0, and so do the images of a text; rows around the lines have positions as text. Elsewhere, and
// for text, a position is one number.
#pragma once
#include "engine/run/image_rows.h"
#include "models/config.h"
#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace kvrun {

struct Position {
	uint32_t time, line, column;
	uint32_t image = 0; // of RopeAxes::numbered
	bool operator==(const Position&) const = default;
};

class PositionCounter {
 public:
	PositionCounter() = default;
	explicit PositionCounter(bool numbered) : numbered_(numbered) {}
	Position take(uint32_t token);                                        // of the next token
	uint32_t next() const { return begin_ + std::max(lines_, columns_); } // of a token of the vocabulary

 private:
	Position take_numbered(uint32_t token);
	bool numbered_ = false;
	uint32_t images_ = 0; // so far
	uint32_t begin_ = 0;  // of the image, or of what comes next
	uint32_t last_ = 0;   // image_row() of the latest row; 0: the latest token is none
	uint32_t line_ = 0, column_ = 0, lines_ = 0, columns_ = 0; // of the image
};

// The positions behind a text.
class TextPositions {
 public:
	explicit TextPositions(const RopeAxes& axes) : axes_(axes), counter_(axes.numbered) {}
	// To be called where the next text is none that the one before begins with, nor a beginning of that one.
	void forget() { counter_ = PositionCounter(axes_.numbered), counted_ = 0; }
	uint32_t next(std::span<const uint32_t> text); // of a token of the vocabulary behind the text
	// Appends those of tokens that come behind the text.
	void append(std::span<const uint32_t> text, std::span<const uint32_t> tokens, std::vector<Position>& out);
	// Of the text's latest tokens, the n-th from its end: 1 <= n <= kLatest, n <= its length.
	Position latest(std::span<const uint32_t> text, uint32_t n);
	static constexpr uint32_t kLatest = 32;

 private:
	const PositionCounter& counted(std::span<const uint32_t> text);
	RopeAxes axes_;
	PositionCounter counter_;
	size_t counted_ = 0;                        // tokens
	std::array<Position, kLatest> latest_ = {}; // of the counted token i: i % kLatest
};

} // namespace kvrun
