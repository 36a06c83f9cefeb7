// matmul kernels over experts: a workgroup multiplies rows of x by the weights of one expert.
//
// w (n_experts, d, cols), bias (n_experts, d); out (T, used, d), one row per slot; x (T, cols) or (T, used, cols):
// p.share slots share a row. The list at binding EXPERTS, u32:
//   BY_SLOT   ids (T, used). The grid's y is the slot; COLS is 1.
//   otherwise tiles of shared/experts.h, COLS a divisor of KV_EXPERT_TILE. The grid's y is COLS columns of a tile.
// Included by lib/matmul_rows.glsl. texel/matmul.comp has both: MATMUL_BY_SLOT.
layout(binding = EXPERTS) restrict readonly buffer ExpertList { uint expert_list[]; };

#ifdef BY_SLOT
const bool EXPERT_BY_SLOT = true;
#else
const bool EXPERT_BY_SLOT = (FLAGS & MATMUL_BY_SLOT) != 0u;
#endif
uint expert;      // index in the bound range
uint expert_list_at; // word of the workgroup's first slot

bool matmul_begin() {
	if (EXPERT_BY_SLOT) {
		expert = expert_list[KV_AT(EXPERTS) + gl_WorkGroupID.y] - p.first_expert;
	} else {
		const uint parts = KV_EXPERT_TILE / COLS, tile = KV_AT(EXPERTS) + gl_WorkGroupID.y / parts * KV_TILE_WORDS;
		expert_list_at = tile + 1u + gl_WorkGroupID.y % parts * COLS;
		if (expert_list[expert_list_at] == KV_NO_SLOT) return false;
		expert = expert_list[tile] - p.first_expert;
	}
	return expert < p.n_experts;
}

uint matmul_first_row(uint proj) { return expert * matmul_choose(proj, p.rows[0], p.rows[1], p.rows[2]); }
uint matmul_first_bias(uint proj) {
	return (p.first_expert + expert) * matmul_choose(proj, p.rows[0], p.rows[1], p.rows[2]);
}

uint tile_out(uint t0, uint c) { return EXPERT_BY_SLOT ? gl_WorkGroupID.y : expert_list[expert_list_at + c]; }
bool tile_has(uint t0, uint c) { return tile_out(t0, c) != KV_NO_SLOT; }
uint tile_x(uint t0, uint c) { return tile_has(t0, c) ? tile_out(t0, c) / p.share : 0u; }
uint vec_out(uint t) { return gl_WorkGroupID.y; }
uint vec_x(uint t) { return gl_WorkGroupID.y / p.share; }
