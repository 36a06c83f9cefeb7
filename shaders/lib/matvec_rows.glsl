// The sums of a matvec kernel, and where they are stored. Include after lib/matmul_rows.glsl; uses ROWS, COLS.
float acc[ROWS * COLS]; // [row][token]

// Called by one lane: stores rows first .. first + ROWS - 1 of the dispatch.
void matvec_store(uint first) {
	const uint each = EPILOGUE == MATMUL_SWIGLU ? 2u : 1u;
	[[unroll]] for (uint r = 0; r < ROWS; r += each) {
		const uvec2 s = matmul_slot(first + r);
		if (s.x > 2u) continue;
		const uvec2 to = matmul_out(s);
		const float add = matmul_bias(s), up_add = each == 2u ? matmul_bias(uvec2(1, s.y)) : 0.0;
		[[unroll]] for (uint t = 0; t < COLS; ++t)
			if (COLS <= 8u || t < p.tokens) // up to 8, COLS is the number of tokens
				matmul_store(to.x + vec_out(t) * to.y, acc[r * COLS + t] + add,
				             acc[(r | (each - 1u)) * COLS + t] + up_add);
	}
}
