// Which rows a matmul kernel works on, and how it stores their sums. The includer declares MatmulPush p, FLAGS, the
// buffers o (out) and bias, at bindings 0 and 3. EXPERTS: the binding of a list of experts, see lib/expert_rows.glsl.
#include "shared/experts.h"

const uint EPILOGUE = FLAGS & MATMUL_EPILOGUE;
const bool TAIL = (FLAGS & MATMUL_TAIL) != 0u;
const bool NORM = (FLAGS & MATMUL_NORM) != 0u; // matvec kernels
const bool CLAMPED = (FLAGS & MATMUL_CLAMPED) != 0u;

uint matmul_choose(uint proj, uint a, uint b, uint c) { return proj == 1 ? b : proj == 2 ? c : a; }
float matmul_silu(float v) { return v / (1.0 + exp(-v)); }
float matmul_glu(float gate, float up) {
	if (!CLAMPED) return matmul_silu(gate) * up;
	gate = min(gate, KV_GLU_LIMIT);
	return gate / (1.0 + exp(-KV_GLU_ALPHA * gate)) * (clamp(up, -KV_GLU_LIMIT, KV_GLU_LIMIT) + 1.0);
}

#ifdef EXPERTS
#include "lib/expert_rows.glsl"
#else
// Without experts: rows of x in order. t0: the first token of the workgroup; c: a column of its tile.
bool matmul_begin() { return true; } // false: no work for this workgroup
uint matmul_first_row(uint proj) { return 0u; }
uint matmul_first_bias(uint proj) { return 0u; }
bool tile_has(uint t0, uint c) { return t0 + c < p.tokens; }
uint tile_x(uint t0, uint c) { return min(t0 + c, p.tokens - 1u); } // row of x
uint tile_out(uint t0, uint c) { return t0 + c; }                   // row of out
uint vec_x(uint t) { return t; } // matvec kernels: row of x, and of out
uint vec_out(uint t) { return t; }
#endif

// Row number i of the dispatch: {projection, row inside it}; past the last row: projection 3. With SwiGLU rows 2i and
// 2i + 1 are row i of projection 0 and of projection 1.
uvec2 matmul_slot(uint i) {
	if (EPILOGUE == MATMUL_SWIGLU) return i / 2u < p.rows[0] ? uvec2(i & 1u, i / 2u) : uvec2(3, 0);
	const uint end1 = p.rows[0] + p.rows[1];
	return i < p.rows[0]          ? uvec2(0, i)
		: i < end1                ? uvec2(1, i - p.rows[0])
		: i < end1 + p.rows[2]    ? uvec2(2, i - end1)
								  : uvec2(3, 0);
}

// First piece of that row; row 0 of projection 0 for a slot past the last row.
uint matmul_row_at(uvec2 slot, uint row_pieces) {
	return matmul_choose(slot.x, p.w_at[0], p.w_at[1], p.w_at[2]) + (matmul_first_row(slot.x) + slot.y) * row_pieces;
}

float matmul_bias(uvec2 slot) {
	if (((p.bias >> slot.x) & 1u) == 0u) return 0.0;
	const uint at = matmul_choose(slot.x, p.bias_at[0], p.bias_at[1], p.bias_at[2]);
	return bias[KV_AT(3) + at + matmul_first_bias(slot.x) + slot.y];
}

// Word of `o` for a row and token 0, and the words from one token to the next.
uvec2 matmul_out(uvec2 slot) {
	return uvec2(KV_AT(0) + matmul_choose(slot.x, p.out_at[0], p.out_at[1], p.out_at[2]) + slot.y,
				 matmul_choose(slot.x, p.stride[0], p.stride[1], p.stride[2]));
}

// `up`: with SwiGLU, the sum of the other row.
void matmul_store(uint at, float sum, float up) {
	if (EPILOGUE == MATMUL_ADD) sum += o[at];
	if (EPILOGUE == MATMUL_SWIGLU) sum = matmul_glu(sum, up);
	if (EPILOGUE == MATMUL_GATE) sum = matmul_glu(o[at], sum);
	o[at] = sum;
}
