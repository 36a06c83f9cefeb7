// score_prompt.comp on devices with cooperative matrices: the same result and bindings, for FLAGS with attention.
//
// Keys and queries are halves, as in attend_prompt_matrix.comp; scores and sums are f32. A query is one head of a
// listed row. A subgroup keeps the keys of M tokens in matrices and goes over all queries, which pass through shared
// memory, 32 at a time. Weights are added element by element in the product's matrix; the columns of that matrix are
// added up at the end, in order, so the result is the same every time.
//
// Grid: x = M tokens for each subgroup of the workgroup, y = kv head. Rows are listed in ascending order.
// M, N, K and requirements: as attend_prompt_matrix.comp; fewer than 2^24 tokens.
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_NV_cooperative_matrix : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1; // query heads of a kv head
layout(constant_id = SPEC_MATRIX_M) const uint M = 16;
layout(constant_id = SPEC_MATRIX_N) const uint N = 16;
layout(constant_id = SPEC_MATRIX_K) const uint K = 16;
layout(push_constant) uniform Push { ScorePromptPush p; };
layout(std430, binding = 0) restrict buffer Score { float score[]; };
layout(std430, binding = 1) readonly restrict buffer Q { vec4 q[]; };
layout(std430, binding = 2) readonly restrict buffer Keys { uvec4 k[]; };
layout(std430, binding = 3) readonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 4) readonly restrict buffer Rows { uint rows[]; };
layout(std430, binding = 5) readonly restrict buffer Seen { uint seen[]; };
#define SEEN_AT 5
#include "lib/seen.glsl"

#define LANE gl_LocalInvocationIndex
#include "lib/halves.glsl"
#include "lib/saliency.glsl"

const uint STAGED = 32u; // queries in shared memory at a time
const uint TOKENS = M * (LOCAL_X / SUBGROUP);
const uint COL_TILES = STAGED / N, STEPS = HEAD_DIM / K;
const uint PIECES = HEAD_DIM / 8u, STAGED_PIECES = STAGED * PIECES;
const uint OWN_PIECES = (STAGED_PIECES + LOCAL_X - 1u) / LOCAL_X; // pieces that one invocation loads
const uint STRIDE = PIECES + 1u; // from one token or query to the next; the 1 spreads them over banks
const uint SUMS = TOKENS * (N / 4u);
const uint STEP_PIECES = K / 8u, STEP_STRIDE = STEP_PIECES + 1u; // pieces of a key in one matrix
const uint STEP_KEYS = TOKENS * STEP_STRIDE, OWN_STEP = (TOKENS * STEP_PIECES + LOCAL_X - 1u) / LOCAL_X;
const uint STAGED_MOST = STAGED * STRIDE > SUMS ? STAGED * STRIDE : SUMS;
const float LOG2_E = 1.4426950409;

shared uvec4
    staged_s[STAGED_MOST > STEP_KEYS ? STAGED_MOST : STEP_KEYS]; // [token or query][piece] halves; [token][N] sums
shared float row_s[STAGED], lse_s[STAGED]; // of each query: its row's token, base 2 logarithm of its sum
shared float token_s[TOKENS];
// [column][token], as floats: bit c is set where the row of query c * N + column sees the token. The mapping of matrix
// elements to lanes is unknown.
shared uvec4 seen_s[SEEN ? N * (TOKENS / 4u) : 1u];

uint n_queries = 0u;
vec4 low_next[OWN_PIECES], high_next[OWN_PIECES];
float row_next = -1.0, lse_next = 0.0; // -1: there is no such query; it sees no token

// Index of query j in (T, n_heads).
uint query_head(uint j) { return rows[KV_AT(4) + j / HEADS] * p.n_heads + gl_WorkGroupID.y * HEADS + j % HEADS; }
void fetch(uint first) {
	[[unroll]] for (uint i = 0u; i < OWN_PIECES; i++) {
		const uint piece = i * LOCAL_X + LANE;
		const uint from = KV_AT(1) / 4u + query_head(min(first + piece / PIECES, n_queries - 1u)) * (HEAD_DIM / 4u) +
		                  piece % PIECES * 2u;
		low_next[i] = q[from];
		high_next[i] = q[from + 1u];
	}
	const uint j = min(first + LANE % STAGED, n_queries - 1u);
	row_next = first + LANE % STAGED < n_queries ? float(p.first + rows[KV_AT(4) + j / HEADS]) : -1.0;
	lse_next = lse[KV_AT(3) + query_head(j)] * LOG2_E;
}

void main() {
	const uint h = gl_WorkGroupID.y, token0 = gl_WorkGroupID.x * TOKENS, own0 = gl_SubgroupID * M;
	const uint k_at = KV_AT(2) / 4u + h * p.t_cap * PIECES;
	n_queries = p.n_rows * HEADS;
	for (uint i = LANE; i < TOKENS; i += LOCAL_X) token_s[i] = float(token0 + i);

	fcoopmatNV<16, gl_ScopeSubgroup, M, K> keys[STEPS];
	uvec4 key[STEPS * OWN_STEP]; // all loads come before their first use
	[[unroll]] for (uint i = 0u; i < STEPS * OWN_STEP; i++) {
		const uint at = min(i % OWN_STEP * LOCAL_X + LANE, TOKENS * STEP_PIECES - 1u);
		const uint t = min(token0 + at / STEP_PIECES, p.n_tokens - 1u);
		key[i] = k[k_at + t * PIECES + i / OWN_STEP * STEP_PIECES + at % STEP_PIECES];
	}
	// One matrix of each subgroup at a time, so that no load is inside a branch: see lib/attend_matrix.glsl.
	[[unroll]] for (uint step = 0u; step < STEPS; step++) {
		[[unroll]] for (uint i = 0u; i < OWN_STEP; i++) {
			const uint at = i * LOCAL_X + LANE;
			if (at < TOKENS * STEP_PIECES)
				staged_s[at / STEP_PIECES * STEP_STRIDE + at % STEP_PIECES] = key[step * OWN_STEP + i];
		}
		barrier();
		coopMatLoadNV(keys[step], staged_s, own0 * STEP_STRIDE, STEP_STRIDE, false);
		barrier();
	}
	fcoopmatNV<32, gl_ScopeSubgroup, M, N> sums = fcoopmatNV<32, gl_ScopeSubgroup, M, N>(0.0), token;
	coopMatLoadNV(token, token_s, own0, 0u, true);

	uint before = 0u; // listed rows that see none of this subgroup's tokens
	for (uint end = p.n_rows; before < end;) {
		const uint middle = (before + end) / 2u;
		if (p.first + rows[KV_AT(4) + middle] < token0) before = middle + 1u;
		else end = middle;
	}
	if (before < p.n_rows) fetch(before * HEADS);
	for (uint first = before * HEADS; first < n_queries; first += STAGED) {
		[[unroll]] for (uint i = 0u; i < OWN_PIECES; i++) {
			const uint piece = i * LOCAL_X + LANE;
			if (piece < STAGED_PIECES)
				staged_s[piece / PIECES * STRIDE + piece % PIECES] = finite_halves8(low_next[i], high_next[i]);
		}
		if (LANE < STAGED) {
			row_s[LANE] = row_next;
			lse_s[LANE] = lse_next;
		}
		if (SEEN)
			for (uint i = LANE; i < N * (TOKENS / 4u); i += LOCAL_X) {
				uvec4 of_tokens = uvec4(0u);
				[[unroll]] for (uint c = 0u; c < COL_TILES; c++) {
					const uint j = min(first + c * N + i / (TOKENS / 4u), n_queries - 1u);
					const uint at = token0 + i % (TOKENS / 4u) * 4u;
					const uint bits = seen_bits(rows[KV_AT(4) + j / HEADS], gl_WorkGroupID.y, at);
					of_tokens |= (uvec4(bits) >> uvec4(0, 1, 2, 3) & 1u) << c;
				}
				seen_s[i] = floatBitsToUint(vec4(of_tokens));
			}
		barrier();
		if (first + STAGED < n_queries) fetch(first + STAGED); // loaded while these are multiplied
		fcoopmatNV<32, gl_ScopeSubgroup, M, N> sees;
		if (SEEN) coopMatLoadNV(sees, seen_s, own0 / 4u, TOKENS / 4u, true);
		[[unroll]] for (uint c = 0u; c < COL_TILES; c++) {
			fcoopmatNV<32, gl_ScopeSubgroup, M, N> dots = fcoopmatNV<32, gl_ScopeSubgroup, M, N>(0.0), row, total;
			[[unroll]] for (uint step = 0u; step < STEPS; step++) {
				fcoopmatNV<16, gl_ScopeSubgroup, K, N> queries;
				coopMatLoadNV(queries, staged_s, c * N * STRIDE + step * (K / 8u), STRIDE, true);
				dots = coopMatMulAddNV(keys[step], queries, dots);
			}
			coopMatLoadNV(row, row_s, c * N, 0u, false);
			coopMatLoadNV(total, lse_s, c * N, 0u, false);
			for (int e = 0; e < row.length(); e++)
			{
				const float s = SOFTCAP ? score_of(dots[e]) * LOG2_E : dots[e] * (p.scale * LOG2_E);
				const bool in_mask = !SEEN || (uint(sees[e]) >> c & 1u) != 0u;
				sums[e] += row[e] >= token[e] && in_mask ? exp2(s - total[e]) : 0.0;
			}
		}
		barrier(); // the next queries take the place of these
	}

	coopMatStoreNV(sums, staged_s, own0 * (N / 4u), N / 4u, false);
	barrier();
	for (uint i = LANE; i < TOKENS && token0 + i < p.n_tokens; i += LOCAL_X) {
		vec4 sum = vec4(0.0);
		[[unroll]] for (uint c = 0u; c < N / 4u; c++) sum += uintBitsToFloat(staged_s[i * (N / 4u) + c]);
		float received = (sum.x + sum.y + (sum.z + sum.w)) / float(HEADS);
		if (BY_NORM) {
			vec4 squares = vec4(0.0);
			for (uint c = 0u; c < PIECES; c++) {
				const uvec4 w = k[k_at + (token0 + i) * PIECES + c];
				squares += halves_low(w) * halves_low(w) + halves_high(w) * halves_high(w);
			}
			received *= key_weight(vec4(squares.x + squares.y + squares.z + squares.w)).x;
		}
		score[KV_AT(0) + h * p.stride + token0 + i] += received;
	}
}
