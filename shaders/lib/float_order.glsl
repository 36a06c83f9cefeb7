// Integers that order as floats do, equal for both zeros; ~0 for NaN and +inf, which callers treat as invalid.
uint float_order(float x) {
	uint bits = floatBitsToUint(x);
	if ((bits & 0x7fffffffu) > 0x7f800000u || bits == 0x7f800000u) return ~0u;
	if (bits == 0x80000000u) bits = 0u;
	return bits ^ (bits >> 31u != 0u ? ~0u : 0x80000000u);
}
const uint LEAST_FLOAT = 0x007fffffu; // float_order(-inf)
