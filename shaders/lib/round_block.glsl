// Blocks of 32 floats rounded to int8: b = round(x / unit), unit = max |x| / 127. Four neighbouring lanes share one
// block.
#include "lib/int8.glsl"

const uint BLOCK_LANES = 4u;
struct RoundedBlock {
	uint lower, upper; // the codes of lane j of the four: elements 4 j .. 4 j + 3, and the same 16 further on
	float unit;
	int sums; // sums of the codes of the lower and the upper half of the block, as two int16
};

RoundedBlock round_block(vec4 lower, vec4 upper) {
	RoundedBlock b;
	// Compared as integers, where a NaN is the largest: it must be kept.
	const uvec4 m = max(floatBitsToUint(abs(lower)), floatBitsToUint(abs(upper)));
	uint top = max(max(m.x, m.y), max(m.z, m.w));
	top = max(top, subgroupShuffleXor(top, 1u));
	top = max(top, subgroupShuffleXor(top, 2u));
	const float most = uintBitsToFloat(top);
	const float inverse = most > 1e-30 ? 127.0 / most : 0.0;
	b.lower = signed_bytes(lower, inverse);
	b.upper = signed_bytes(upper, inverse);
	b.unit = most * (1.0 / 127.0);
	b.sums = dot_bytes(int(b.lower), 0x01010101, 0) + dot_bytes(int(b.upper), 0x01010101, 0) * 65536;
	b.sums += subgroupShuffleXor(b.sums, 1u);
	b.sums += subgroupShuffleXor(b.sums, 2u);
	return b;
}
ivec2 half_sums(int both) {
	const int lower = bitfieldExtract(both, 0, 16);
	return ivec2(lower, (both - lower) >> 16);
}
