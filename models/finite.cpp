// Search for NaN and infinity: a number is finite if some bit of its exponent is zero.
#include "models/finite.h"
#include "engine/core/block_scales.h"
#include "engine/core/error.h"
#include <algorithm>
#include <cstring>

namespace kvrun {
namespace {

template <class U> bool is_special(const std::byte* p, U exponent) {
	U bits;
	std::memcpy(&bits, p, sizeof bits);
	return (bits & exponent) == exponent;
}

// The index of the first of n floating-point numbers whose exponent is all ones, or n. Whole runs are tested first,
// without a branch per number.
template <class U> size_t first_special(const std::byte* p, size_t n, U exponent) {
	constexpr size_t kRun = 1024;
	for (size_t at = 0; at < n; at += kRun) {
		const size_t end = std::min(n, at + kRun);
		U any = 0;
		for (size_t i = at; i < end; ++i) any |= U(is_special(p + i * sizeof(U), exponent));
		for (size_t i = at; any && i < end; ++i)
			if (is_special(p + i * sizeof(U), exponent)) return i;
	}
	return n;
}

// The index of the first element that is not finite in n floating-point numbers or blocks; the number of elements if
// all are finite.
size_t first_special_of(DType t, const std::byte* p, size_t n, size_t block_bytes) {
	switch (t) {
	case DType::F32: return first_special<uint32_t>(p, n, 0x7f800000);
	case DType::F16: return first_special<uint16_t>(p, n, 0x7c00);
	case DType::BF16: return first_special<uint16_t>(p, n, 0x7f80);
	case DType::I64:
	case DType::U32: return n;
	default:
		const size_t block = dtype_info(t).block;
		for (size_t i = 0; i < n; ++i)
			if (const int at = first_not_finite_of_block(t, p + i * block_bytes); at >= 0)
				return i * block + size_t(at);
		return n * block;
	}
	KV_ASSERT(!"real numbers");
	return 0;
}

} // namespace

std::optional<size_t> first_not_finite(DType type, std::span<const std::byte> rows) {
	const auto [name, block, block_bytes] = dtype_info(type);
	const size_t n = rows.size() / block_bytes, i = first_special_of(type, rows.data(), n, block_bytes);
	return i < n * block ? std::optional(i) : std::nullopt;
}

} // namespace kvrun
