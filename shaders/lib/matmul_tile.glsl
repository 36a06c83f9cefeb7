// The sums of an invocation of matmul.comp and matmul_int8.comp. A tile is 64 rows x COLS tokens, for 128 invocations.
// Include after lib/matmul_rows.glsl; uses COLS.
const uint ROWS = 64, K = 32, LOCAL = 128; // K: elements of a row in a step
const uint TILE_T = COLS / 16u;            // tokens of an invocation
// Rows 4 a .. 4 a + 3 and 32 + 4 a .. 32 + 4 a + 3 of token TILE_T b + t: [t][rows].
vec4 acc[2 * TILE_T];

void matmul_store_tile(uint first, uint t0, uint a, uint b) {
	const uint each = EPILOGUE == MATMUL_SWIGLU ? 2u : 1u;
	[[unroll]] for (uint r = 0; r < 8; r += each) {
		const uvec2 s = matmul_slot(first + (r < 4 ? 0u : 32u) + 4u * a + r % 4u);
		if (s.x > 2u) continue;
		const uvec2 to = matmul_out(s);
		const float add = matmul_bias(s), up_add = each == 2u ? matmul_bias(uvec2(1, s.y)) : 0.0;
		[[unroll]] for (uint i = 0; i < TILE_T; ++i) {
			const uint c = b * TILE_T + i;
			const vec4 sums = acc[2 * i + r / 4];
			if (tile_has(t0, c))
				matmul_store(to.x + tile_out(t0, c) * to.y, sums[r % 4] + add, sums[(r | 1u) % 4] + up_add);
		}
	}
}
