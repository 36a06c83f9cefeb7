// The rotation of shared/kv_page.h, or its inverse, of vectors in shared memory: `staged` pieces of 4 channels. Signs
// come first; in the inverse, last.
//
// The including file defines HEAD_DIM, LOCAL_X, LANE and, for piece i, STAGED(i) and STAGED_SET(i, x).
void rotate_staged(const uint staged, const bool back) {
	const uint block = kv_rotation_block(HEAD_DIM), pieces = HEAD_DIM / 4u; // of a vector
	for (uint i = LANE; i < staged; i += LOCAL_X) {
		const vec4 x = STAGED(i) * kv_rotation_scale(block);
		STAGED_SET(i, hadamard4(back ? x : signed4(x, i % pieces * 4u)));
	}
	barrier();
	for (uint step = 1u; step < block / 4u; step *= 2u) {
		for (uint i = LANE; i < staged / 2u; i += LOCAL_X) {
			const uint at = i / step * 2u * step + i % step;
			const vec4 a = STAGED(at), b = STAGED(at + step);
			STAGED_SET(at, a + b);
			STAGED_SET(at + step, a - b);
		}
		barrier();
	}
	if (!back) return;
	for (uint i = LANE; i < staged; i += LOCAL_X) STAGED_SET(i, signed4(STAGED(i), i % pieces * 4u));
	barrier();
}
