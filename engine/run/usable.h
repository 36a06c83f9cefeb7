// Whether a model's results are finite. A weight that is not finite, or too large, does not stop the arithmetic: norms
// divide by infinity and rows become zeros, which looks like a valid answer and depends on the device.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace kvrun {

// Whether the squares of a row of the residual stream have a finite sum in f32, which every norm computes. An overflow
// or NaN of a layer stays in the residual stream, so the last layer's row shows those of all layers.
inline bool has_norm(std::span<const float> row) {
	double sum = 0;
	for (const float x : row) sum += double(x) * double(x);
	return sum <= double(std::numeric_limits<float>::max()); // false for a NaN
}

// Whether a token can be chosen from the logits: none is NaN or +inf, and at least one is above -inf.
inline bool has_choice(std::span<const float> logits) {
	constexpr float kInfinity = std::numeric_limits<float>::infinity();
	// Without the sign, the bits of any NaN are larger than those of infinity.
	uint32_t most = 0;
	float largest = -kInfinity;
	for (const float x : logits) {
		most = std::max(most, std::bit_cast<uint32_t>(x) & 0x7fffffffu);
		largest = x > largest ? x : largest;
	}
	return most <= std::bit_cast<uint32_t>(kInfinity) && std::isfinite(largest);
}

} // namespace kvrun
