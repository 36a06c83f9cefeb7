// half <-> float and bfloat16 -> float, bit-exact on every platform; round to nearest even.
#pragma once
#include <bit>
#include <cstdint>

namespace kvrun {

// IEEE binary16 -> binary32, exact, subnormals and NaN payloads included.
constexpr float f16_to_f32(uint16_t h) {
	const uint32_t sign = uint32_t(h & 0x8000u) << 16;
	uint32_t exp = (h >> 10) & 31u, man = h & 0x3ffu;
	if (exp == 31) return std::bit_cast<float>(sign | 0x7f800000u | (man << 13));
	if (exp == 0) {
		if (man == 0) return std::bit_cast<float>(sign);
		const int shift = std::countl_zero(man) - 21; // moves the leading one to bit 10
		man = (man << shift) & 0x3ffu;
		exp = uint32_t(1 - shift);
	}
	return std::bit_cast<float>(sign | ((exp + 112u) << 23) | (man << 13));
}

// IEEE binary32 -> binary16, round to nearest even; overflow becomes infinity.
constexpr uint16_t f32_to_f16(float f) {
	const uint32_t x = std::bit_cast<uint32_t>(f);
	const uint16_t sign = uint16_t((x >> 16) & 0x8000u);
	const uint32_t a = x & 0x7fffffffu;
	if (a >= 0x7f800000u) return uint16_t(sign | 0x7c00u | (a > 0x7f800000u ? 0x200u | ((a >> 13) & 0x3ffu) : 0u));
	if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00u); // rounds past the largest half
	if (a < 0x38800000u) {                                 // subnormal or zero
		if (a < 0x33000000u) return sign;
		const uint32_t shift = 126u - (a >> 23); // 14..24
		const uint32_t man = (a & 0x7fffffu) | 0x800000u;
		const uint32_t half = 1u << (shift - 1), rest = man & ((1u << shift) - 1);
		uint32_t r = man >> shift;
		if (rest > half || (rest == half && (r & 1u))) ++r;
		return uint16_t(sign | r);
	}
	const uint32_t r = a - 0x38000000u;
	return uint16_t(sign | ((r + 0xfffu + ((r >> 13) & 1u)) >> 13));
}

constexpr float round_f16(float f) { return f16_to_f32(f32_to_f16(f)); }
constexpr float bf16_to_f32(uint16_t b) { return std::bit_cast<float>(uint32_t(b) << 16); }

} // namespace kvrun
