// The grids of GGML's IQ types, expanded from 16-bit entries to words.
#include "engine/core/iq_grids.h"
#include "shaders/shared/weight_codes.h"
#include <array>

namespace kvrun {
namespace {

#include "engine/core/iq_grids.inc"

// Elements by their codes in an entry. For IQ1 (-1, 0, 1): the codes in the words.
constexpr uint8_t kIq2[4] = {8, 25, 43, 0}, kIq3[8] = {4, 12, 20, 28, 36, 44, 52, 62},
                  kIq3s[8] = {1, 3, 5, 7, 9, 11, 13, 15}, kIq1[4] = {0, 8, 16, 0};

// Entries of `width` elements with `bits` bits each.
void put(uint32_t* to, std::span<const uint16_t> entries, uint32_t width, uint32_t bits,
         std::span<const uint8_t> values) {
	for (const uint16_t e : entries)
		for (uint32_t i = 0; i < width; i += 4) {
			uint32_t word = 0;
			for (uint32_t c = 0; c < 4; ++c)
				word |= uint32_t(values[e >> (i + c) * bits & ((1u << bits) - 1)]) << 8 * c;
			*to++ = word;
		}
}

std::array<uint32_t, GRID_WORDS> make() {
	std::array<uint32_t, GRID_WORDS> words{};
	put(&words[GRID_IQ2_XXS], kIQ2XXS, 8, 2, kIq2);
	put(&words[GRID_IQ2_XS], kIQ2XS, 8, 2, kIq2);
	put(&words[GRID_IQ2_S], kIQ2S, 8, 2, kIq2);
	put(&words[GRID_IQ3_XXS], kIQ3XXS, 4, 3, kIq3);
	put(&words[GRID_IQ3_S], kIQ3S, 4, 3, kIq3s);
	put(&words[GRID_IQ1], kIQ1S, 8, 2, kIq1);
	return words;
}

} // namespace

std::span<const uint32_t> iq_grids() {
	static const std::array<uint32_t, GRID_WORDS> words = make();
	return words;
}

} // namespace kvrun
