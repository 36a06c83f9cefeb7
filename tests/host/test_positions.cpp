// Positions of tokens where rows of images have lines and columns (M-RoPE, XD-RoPE).
#include "engine/run/positions.h"
#include "models/config.h"
#include <doctest/doctest.h>
#include <vector>

using namespace kvrun;

namespace {

using Tokens = std::vector<uint32_t>;

// Rows of an image as ids from `first` on.
Tokens image(uint32_t first, uint32_t lines, uint32_t columns) {
	Tokens out;
	for (uint32_t i = 0; i < lines * columns; ++i)
		out.push_back((kFirstImageRow + first + i) | (i % columns == 0 ? kLineMark : 0));
	return out;
}
// The same with a row behind each line and rows around all (RopeAxes::numbered).
Tokens framed(uint32_t first, uint32_t lines, uint32_t columns) {
	const uint32_t n = lines * (columns + 1) + 2;
	Tokens out;
	for (uint32_t i = 0; i < n; ++i)
		out.push_back((kFirstImageRow + first + i) | (i % (columns + 1) == 0 || i + 1 == n ? kLineMark : 0));
	return out;
}
const RopeAxes kAxes = {2, 1, 1}, kNumbered = {2, 1, 1, false, true, 1};
Tokens joined(std::initializer_list<Tokens> parts) {
	Tokens out;
	for (const Tokens& p : parts) out.insert(out.end(), p.begin(), p.end());
	return out;
}
std::vector<Position> positions(const Tokens& tokens, const RopeAxes& axes = kAxes) {
	std::vector<Position> out;
	TextPositions(axes).append({}, tokens, out);
	return out;
}

} // namespace

TEST_CASE("positions: an image advances by its longer edge") {
	// as in arXiv:2409.12191, figure 3: text, 2 lines of 3, text
	const Tokens tokens = joined({{5, 6}, image(100, 2, 3), {7}});
	CHECK(positions(tokens) ==
	      std::vector<Position>{
	          {0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {2, 2, 3}, {2, 2, 4}, {2, 3, 2}, {2, 3, 3}, {2, 3, 4}, {5, 5, 5}});
	CHECK(positions(joined({image(0, 4, 1), {1}})).back() == Position{4, 4, 4});
	CHECK(positions(joined({image(0, 1, 4), {1}})).back() == Position{4, 4, 4});
	CHECK(positions(joined({image(0, 1, 1), {1}})).back() == Position{1, 1, 1});
}

TEST_CASE("positions: images side by side, the same twice, and parts of them") {
	const Tokens two = joined({image(100, 2, 2), image(700, 2, 2), {1}});
	CHECK(positions(two)[4] == Position{2, 2, 2});
	CHECK(positions(two)[7] == Position{2, 3, 3});
	CHECK(positions(two).back() == Position{4, 4, 4});
	CHECK(positions(joined({image(100, 2, 2), image(100, 2, 2), {1}})).back() == Position{4, 4, 4});
	CHECK(positions(joined({image(100, 2, 2), {3}, image(100, 2, 2)})).back() == Position{3, 4, 4});
	const Tokens whole = image(50, 3, 2);
	CHECK(positions(joined({Tokens(whole.begin(), whole.begin() + 3), {1}})).back() == Position{2, 2, 2});
	// noise is text (UINT32_MAX)
	CHECK(positions({UINT32_MAX, 1}).back() == Position{1, 1, 1});
}

// As get_rope_index() of transformers' HunYuanVLModel.
TEST_CASE("positions: images are numbered, their rows have times and the lines ends, rows around them none") {
	const auto text = [](uint32_t at) { return Position{at, at, at, at}; };
	CHECK(positions(joined({{5}, framed(100, 2, 2), {7}, framed(700, 1, 1), framed(100, 1, 2), {8}}), kNumbered) ==
	      std::vector<Position>{text(0),       text(1),       {2, 0, 0, 0},  {3, 0, 1, 0}, {4, 0, 2, 0},
	                            {5, 1, 0, 0},  {6, 1, 1, 0},  {7, 1, 2, 0},  text(8),      text(9),
	                            text(10),      {11, 0, 0, 1}, {12, 0, 1, 1}, text(13),     text(14),
	                            {15, 0, 0, 2}, {16, 0, 1, 2}, {17, 0, 2, 2}, text(18),     text(19)});
}

static void check_growing(const Tokens& tokens, const RopeAxes& axes) {
	const std::vector<Position> want = positions(tokens, axes);
	TextPositions grows(axes), numbers(RopeAxes{});
	for (size_t n = 0; n < tokens.size(); ++n) {
		CAPTURE(n);
		const auto text = std::span(tokens).first(n), rest = std::span(tokens).subspan(n);
		std::vector<Position> got;
		grows.append(text, rest, got);
		CHECK(got == std::vector<Position>(want.begin() + long(n), want.end()));
		if (!is_image_row(tokens[n])) CHECK(grows.next(text) == want[n].time);
		CHECK(numbers.next(text) == n);
	}
	CHECK(grows.next(std::span(tokens).first(1)) == 1); // shorter again
	grows.forget();
	const Tokens other = joined({{5, 6, 7, 8}});
	CHECK(grows.next(other) == 4);
	std::vector<Position> got;
	numbers.append(std::span(tokens).first(4), std::span(tokens).subspan(4, 1), got);
	CHECK(got == std::vector<Position>{{4, 4, 4}});
}

TEST_CASE("positions: of what comes behind a text that grows and is cut") {
	for (const bool numbered : {false, true}) {
		CAPTURE(numbered);
		check_growing(numbered ? joined({{5, 6}, framed(100, 2, 3), {7, 8}, framed(300, 3, 1), {9}})
		                       : joined({{5, 6}, image(100, 2, 3), {7, 8}, image(300, 3, 1), {9}}),
		              numbered ? kNumbered : kAxes);
	}
}

TEST_CASE("positions: which pairs of channels turn by which axis") {
	const auto axes = [](const RopeAxes& a, uint32_t pairs) {
		std::string out;
		for (uint32_t i = 0; i < pairs; ++i) out += "tlci"[a.of(i)];
		return out;
	};
	CHECK(axes({2, 1, 1, false}, 4) == "ttlc");
	CHECK(axes({2, 1, 1, false}, 6) == "ttlctt");
	CHECK(axes({2, 1, 1, true}, 4) == "tlct");
	CHECK(axes({6, 5, 5, true}, 16) == "tlctlctlctlctlct");
	CHECK(axes({4, 2, 1, true}, 8) == "tlctlttt");
	CHECK(axes({2, 1, 3, false, true, 2}, 8) == "ttccclii");
	CHECK(!RopeAxes{4, 0, 0, false});
	CHECK(RopeAxes{2, 1, 1, false});
}
