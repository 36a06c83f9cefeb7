// attend_prompt.comp on devices with cooperative matrices: the same result, bindings and FLAGS.
//
// Queries, keys, values and weights are halves; scores and sums are f32 (lib/attend_matrix.glsl). Tiles of tokens start
// at multiples of KEYS from token 0. A tile of which a row sees nothing leaves the row's state unchanged. So a row's
// bits do not depend on how the prompt is cut.
//
// Grid: x = block of TOKENS rows, y = kv head * blocks + block of up to HEADS of its query heads; HEADS * TOKENS <=
// QUERIES. M, N, K: a shape that the device has for f16 x f16 + f32.
// Needs: HEAD_DIM a multiple of 8, N and K, at most 512; whole matrices in the QUERIES * SUBGROUP * GROUPS / LOCAL_X
// rows of GROUPS subgroups; a lane or more for each of the QUERIES * SUBGROUP / LOCAL_X rows of a subgroup; GROUPS at
// most KEYS / N, or 2, 4 or 8 times that and HEAD_DIM a multiple of as many K.
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_NV_cooperative_matrix : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_QUERIES) const uint QUERIES = 64;
layout(constant_id = SPEC_TILE) const uint KEYS = 32;
layout(constant_id = SPEC_AHEAD) const bool AHEAD = true;
layout(constant_id = SPEC_KEPT) const bool KEPT = false;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
layout(constant_id = SPEC_COLS) const uint TOKENS = 64;
layout(constant_id = SPEC_SUBGROUP_COLS) const uint GROUPS = 2;
layout(constant_id = SPEC_MATRIX_M) const uint M = 16;
layout(constant_id = SPEC_MATRIX_N) const uint N = 16;
layout(constant_id = SPEC_MATRIX_K) const uint K = 16;
const bool IN_CHUNKS = (FLAGS & PROMPT_CHUNKS) != 0u;
const bool WINDOW = (FLAGS & PROMPT_WINDOW) != 0u, SOFTCAP = (FLAGS & PROMPT_SOFTCAP) != 0u;
const bool SINKS = (FLAGS & PROMPT_SINKS) != 0u, SEEN = (FLAGS & PROMPT_SEEN) != 0u;
const bool Q_ROTATE = false, V_ROTATE = false, PARTIAL = (FLAGS & PROMPT_STATE) != 0u;

layout(push_constant) uniform Push { AttendPromptPush p; };
layout(std430, binding = 0) writeonly restrict buffer Result { float result[]; };
layout(std430, binding = 1) readonly restrict buffer Q { uvec4 q[]; };
layout(std430, binding = 2) readonly restrict buffer KCodes { uvec4 k_codes[]; };
layout(std430, binding = 3) readonly restrict buffer VCodes { uvec4 v_codes[]; };
layout(std430, binding = 4) readonly restrict buffer RowParts { uint row_parts[]; };
layout(std430, binding = 5) writeonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 6) readonly restrict buffer Sinks { float sinks[]; };
layout(std430, binding = 7) readonly restrict buffer Seen { uint seen[]; };
#define SEEN_AT 7
#include "lib/seen.glsl"

uint query_base = 0u, row_first = 0u, head = 0u, n_heads_here = 0u,
     n_tokens = 0u; // query j: row j / HEADS, head j % HEADS
uint row_of(uint j) { return row_first + j / HEADS; }
bool is_query(uint j) { return j < HEADS * TOKENS && row_of(j) < p.n_rows && j % HEADS < n_heads_here; }
uint query_at(uint j) {
	return query_base +
	       (min(row_of(j), p.n_rows - 1u) * p.n_heads + min(j % HEADS, n_heads_here - 1u)) * (HEAD_DIM / 4u);
}
vec4 query_fit(vec4 x, uint c) { return x; }

#include "lib/attend_matrix.glsl"

uint k_head = 0u, v_head = 0u; // pieces where the kv head's keys and values begin
uvec4 k_next[OWN_PIECES], v_next[OWN_VALUES];
uvec2 key_place(uint i) {
	const uint at = i * LOCAL_X + LANE;
	return uvec2(at / PIECES, at % PIECES);
}
uint piece_at(uint tile, uvec2 at) {
	return min(tile * KEYS + at.x, n_tokens - 1u) * PIECES + at.y;
} // no weight falls on a token twice
void tile_fetch(uint tile) {
	[[unroll]] for (uint i = 0; i < OWN_PIECES; i++) k_next[i] = k_codes[k_head + piece_at(tile, key_place(i))];
	[[unroll]] for (uint i = 0; i < OWN_VALUES; i++) v_next[i] = v_codes[v_head + piece_at(tile, value_place(i))];
}
uvec4 tile_key(uint i) { return k_next[i]; }
uvec4 tile_value(uint i) { return v_next[i]; }
uint unseen(uint all) { // tokens before those that a row sees; all: these and the row's
	const uint n = IN_CHUNKS ? (all - 1u) / p.window * p.window : all - min(all, p.window);
	return p.ahead >= p.n_rows ? min(n, p.first) : n;
}
uint tile_live() { return 0u; }
uint tile_seen(uint tile, uint live, uint j) {
	const uint n_seen = min(p.first + row_of(j) + 1u + p.ahead, n_tokens), before = min(tile * KEYS, n_seen);
	uint mask = n_seen - before >= 32u ? ~0u : (1u << (n_seen - before)) - 1u;
	if (SEEN) mask &= seen_bits(min(row_of(j), p.n_rows - 1u), gl_WorkGroupID.y / p.blocks, tile * KEYS);
	if (!WINDOW) return mask;
	const uint lost = unseen(p.first + row_of(j) + 1u), gone = lost - min(lost, tile * KEYS);
	return gone >= 32u ? 0u : mask & ~0u << gone;
}
#ifdef IN_REGISTERS
bool tile_whole(uint tile, uint live) {
	if (SEEN) return false;
	const uint last = p.first + min(row_first + TOKENS, p.n_rows); // tokens that the block's last row sees
	const uint first_seen = min(p.first + row_first + 1u + p.ahead, n_tokens); // by the first row
	return tile * KEYS + KEYS <= first_seen && (!WINDOW || unseen(last) <= tile * KEYS);
}
#endif

uint head_at(uint j) { // where the result of query j begins
	const uint row = row_of(j), parts = KV_AT(4) + row * 2u;
	const uint to = PARTIAL ? row_parts[parts] + row_parts[parts + 1u] - 1u : row;
	return KV_AT(0) + (to * p.n_heads + head + j % HEADS) * (PARTIAL ? HEAD_DIM + 2u : HEAD_DIM);
}
float query_done(uint j, float top, float total) {
	if (!is_query(j)) return total;
	float most = top, all = total; // maximum and sum, sink included
	if (SINKS) {
		const float sink = sinks[KV_AT(6) + head + j % HEADS];
		most = max(top, sink);
		all = total * exp(top - most) + exp(sink - most);
	}
	const bool none = SEEN && all == 0.0;
	if ((FLAGS & PROMPT_LSE) != 0u)
		lse[KV_AT(5) + row_of(j) * p.n_heads + head + j % HEADS] =
			none ? uintBitsToFloat(MINUS_INF) : most + log(all);
	// infinite only where the result is 0; none: any divisor of its sums of 0
	if (!PARTIAL) return SINKS ? all * exp(most - top) : none ? 1.0 : total;
	const uint to = head_at(j) + HEAD_DIM;
	result[to] = top;
	result[to + 1u] = total;
	return total;
}
void piece_done(uint j, uint c, vec4 sums, float total) {
	if (!is_query(j)) return;
	const uint to = head_at(j) + c * 4u;
	const vec4 x = PARTIAL ? sums : sums / total;
	[[unroll]] for (uint i = 0; i < 4u; i++) result[to + i] = x[i];
}

void main() {
	const uint kv_head = gl_WorkGroupID.y / p.blocks, share = p.n_heads / p.n_kv_heads;
	const uint block_first = gl_WorkGroupID.y % p.blocks * HEADS;
	head = kv_head * share + block_first;
	n_heads_here = min(HEADS, share - block_first);
	row_first = gl_WorkGroupID.x * TOKENS;
	query_base = KV_AT(1) / 4u + head * (HEAD_DIM / 4u);
	n_tokens = p.first + min(row_first + TOKENS + p.ahead, p.n_rows); // tokens that the last row of the block sees
	k_head = KV_AT(2) / 4u + kv_head * p.t_cap * PIECES;
	v_head = KV_AT(3) / 4u + kv_head * p.t_cap * PIECES;
	const uint first_all = p.first + row_first + 1u; // tokens that the block's first row sees
	attend(WINDOW ? unseen(first_all) / KEYS : 0u, (n_tokens + KEYS - 1u) / KEYS);
}
