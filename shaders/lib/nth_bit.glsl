// The place of the i-th bit that is set, i < bitCount(bits).
uint nth_bit(uint bits, uint i) {
	uint at = 0u;
	[[dont_unroll]] for (uint half_ = 16u; half_ > 0u; half_ /= 2u) {
		const uint low = bitCount(bits & ((1u << half_) - 1u));
		const bool above = i >= low;
		i -= above ? low : 0u;
		at += above ? half_ : 0u;
		bits = above ? bits >> half_ : bits;
	}
	return at;
}
