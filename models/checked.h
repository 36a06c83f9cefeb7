// Arithmetic on sizes that come from a file: the result is empty where it would wrap.
#pragma once
#include <cstdint>
#include <optional>

namespace kvrun {

constexpr std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
	if (a > UINT64_MAX - b) return {};
	return a + b;
}
constexpr std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
	if (b != 0 && a > UINT64_MAX / b) return {};
	return a * b;
}
// Next multiple of `to`, a power of two.
constexpr std::optional<uint64_t> checked_align_up(uint64_t a, uint64_t to) {
	const auto sum = checked_add(a, to - 1);
	if (!sum) return {};
	return *sum & ~(to - 1);
}

} // namespace kvrun
