// Whether what a model computed is numbers at all. A weight that is no finite number, or too large a one, does not stop
// the arithmetic: norms divide by infinity and rows become zeros, which looks like an answer and depends on the device.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace kvrun {

// A row of the residual stream: its squares have a sum in f32, as every norm takes it. What overflows or becomes NaN in
// a layer stays in the residual stream, so the last layer's row tells of all of them.
inline bool has_norm(std::span<const float> row) {
	double sum = 0;
	for (const float x : row) sum += double(x) * double(x);
	return sum <= double(std::numeric_limits<float>::max()); // false of a NaN
}

// Logits to choose a token from: none is NaN or +inf, and one at least is above -inf.
inline bool has_choice(std::span<const float> logits) {
	constexpr float kInfinity = std::numeric_limits<float>::infinity();
	// Bits of a NaN, of either sign, are above those of infinity once the sign is gone.
	uint32_t most = 0;
	float largest = -kInfinity;
	for (const float x : logits) {
		most = std::max(most, std::bit_cast<uint32_t>(x) & 0x7fffffffu);
		largest = x > largest ? x : largest;
	}
	return most <= std::bit_cast<uint32_t>(kInfinity) && std::isfinite(largest);
}

} // namespace kvrun
