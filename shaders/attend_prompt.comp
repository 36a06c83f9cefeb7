// Prompt attention: rows over the keys and values of their own prompt. Scores are never written to memory.
//
//   out(row, head) = sum_t w_t v_t / sum_t w_t,  s_t = q . k_t / sqrt(head_dim), w_t = exp(s_t - max),
//   t <= first + row, or with p.ahead t < first + n_rows
// With PROMPT_STATE the state (sum_t w_t v_t, max, sum_t w_t) goes to the row's last part instead of the result to out.
// With PROMPT_LSE, lse gets max + log(sum_t w_t). With PROMPT_WINDOW a row sees only its latest `window` tokens, or
// with PROMPT_CHUNKS too those since the last multiple of `window`. With PROMPT_SINKS the divisor also has exp(sink -
// max). With PROMPT_SLOPES, s_t -= slope |t - first - row|. With PROMPT_SEEN a row sees only tokens whose bit is set,
// maybe none: its result is 0 then, its lse -inf. Tiles of tokens start at multiples of 4 * LOCAL_X from token 0. A
// tile of which a row sees nothing leaves the row's state unchanged. So a row's bits do not depend on how the prompt is
// cut.
//
//   binding  name      shape
//   0        result    out (T, n_heads, HEAD_DIM) f32, or parts (n_parts, n_heads, HEAD_DIM + 2) f32; written
//   1        q         (T, n_heads, HEAD_DIM) f32
//   2        k_codes   (n_kv_heads, t_cap, HEAD_DIM) f16
//   3        v_codes   (n_kv_heads, t_cap, HEAD_DIM) f16
//   4        row_parts (T, 2) u32: first part, parts of a row; unused without PROMPT_STATE
//   5        lse       (T, n_heads) f32, written; unused without PROMPT_LSE
//   6        of_heads  (n_heads) f32: sinks with PROMPT_SINKS, slopes with PROMPT_SLOPES, else unused
//   7        seen      (T * p.seen_sets, p.seen_words) u32, bits; unused without PROMPT_SEEN
//
// Grid: x = block of TOKENS rows, y = kv head * blocks + block of up to HEADS of its query heads.
// Needs: HEAD_DIM a multiple of 8, LOCAL_X a multiple of 8 (a power of two).
// Builds: storage buffers; TEXELS: for software drivers, where texel/attend.glsl sums values.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/spec.h"
#include "shared/push.h"
#include "shared/kv_page.h"
#include "lib/input.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 32;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
layout(constant_id = SPEC_COLS) const uint TOKENS = 8;
const bool IN_CHUNKS = (FLAGS & PROMPT_CHUNKS) != 0;
const bool WINDOW = (FLAGS & PROMPT_WINDOW) != 0, SOFTCAP = (FLAGS & PROMPT_SOFTCAP) != 0;
const bool SINKS = (FLAGS & PROMPT_SINKS) != 0, SEEN = (FLAGS & PROMPT_SEEN) != 0;
const bool SLOPES = (FLAGS & PROMPT_SLOPES) != 0;
const uint QUERIES = HEADS * TOKENS; // query j: row j / HEADS, head j % HEADS
const uint V_BITS = 16, V_GROUP = 1, PAGE = 1, SCALES = 0, QUAD_LANES = 1;
const bool V_NORM = false, K_STAGED = false;

layout(push_constant) uniform Push { AttendPromptPush p; };
layout(std430, binding = 0) writeonly restrict buffer Result { float result[]; };
INPUT_WORDS(1, Q, q);
INPUT_WORDS(2, KCodes, k_codes);
INPUT_WORDS(3, VCodes, v_codes);
layout(std430, binding = 4) readonly restrict buffer RowParts { uint row_parts[]; };
layout(std430, binding = 5) writeonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 6) readonly restrict buffer OfHeads { float of_heads[]; };
layout(std430, binding = 7) readonly restrict buffer Seen { uint seen[]; };
#define SEEN_AT 7
#include "lib/seen.glsl"

uint query_base = 0, row_first = 0, n_heads_here = 0;
uint query_at(uint j) {
	const uint row = min(row_first + j / HEADS, p.n_rows - 1);
	return query_base + (row * p.n_heads + min(j % HEADS, n_heads_here - 1)) * (HEAD_DIM / 4);
}
#ifdef TEXELS
void queries_fit(uint c) {}
#include "texel/attend.glsl"
#else
vec4 query_fit(vec4 x, uint c) { return x; }
#include "lib/attend.glsl"
#endif

#include "lib/softcap.glsl"

const uint PIECES = HEAD_DIM / 8; // 16-byte pieces of a token's K or V

uint first_seen(uint own) { // first token that the row of this token sees
	if (!WINDOW) return 0;
	if (IN_CHUNKS) return own / p.window * p.window;
	const uint first = own < p.window ? 0 : own - p.window + 1;
	return p.ahead >= p.n_rows ? min(first, p.first) : first;
}

float of_head(uint head, uint j) { return of_heads[KV_AT(6) + head + min(j % HEADS, n_heads_here - 1)]; }

void main() {
	const uint kv_head = gl_WorkGroupID.y / p.blocks, share = p.n_heads / p.n_kv_heads;
	const uint block_first = gl_WorkGroupID.y % p.blocks * HEADS, head = kv_head * share + block_first;
	n_heads_here = min(HEADS, share - block_first);
	row_first = gl_WorkGroupID.x * TOKENS;
	query_base = KV_AT(1) / 4 + head * (HEAD_DIM / 4);
#ifndef TEXELS
	queries_stage();
#endif
	state_clear();

	// tokens that the last row of the block sees
	const uint n_tokens = p.first + min(row_first + TOKENS + p.ahead, p.n_rows);
	const uint head_at = kv_head * p.t_cap * PIECES, k_head = KV_AT(2) / 4 + head_at, v_head = KV_AT(3) / 4 + head_at;
	const uint unseen = first_seen(p.first + row_first); // tokens that no row of the block sees
	const uint skipped = unseen / (QUADS * 4) * (QUADS * 4);
	for (uint tile = skipped; tile < n_tokens; tile += QUADS * 4) {
		const uint token = tile + LANE * 4;
		uint at[4];
		uint stored = 0;
		[[unroll]] for (uint t = 0; t < 4; t++) {
			at[t] = k_head + min(token + t, n_tokens - 1) * PIECES;
			if (token + t < n_tokens) stored |= 1u << t;
		}
		[[unroll]] for (uint j = 0; j < QUERIES; j++) score[j] = vec4(0);
		for (uint step = 0; step < PIECES; step++) {
			uvec4 w[4]; // 8 channels of each token
			[[unroll]] for (uint t = 0; t < 4; t++) w[t] = WORDS_AT(k_codes, at[t]);
			queries_step(step);
			[[unroll]] for (uint h = 0; h < 2; h++) {
				vec4 x[4], k[4];
				[[unroll]] for (uint t = 0; t < 4; t++) x[t] = h == 0 ? halves_low(w[t]) : halves_high(w[t]);
				[[unroll]] for (uint c = 0; c < 4; c++) k[c] = vec4(x[0][c], x[1][c], x[2][c], x[3][c]);
				score_half(step, h, k);
			}
			[[unroll]] for (uint t = 0; t < 4; t++) at[t]++;
		}
		[[unroll]] for (uint j = 0; j < QUERIES; j++) {
			const uint own = p.first + row_first + j / HEADS;
			bvec4 blind = greaterThan(token + uvec4(0, 1, 2, 3), uvec4(min(own + p.ahead, n_tokens - 1)));
			if (WINDOW)
				blind = bvec4(uvec4(blind) | uvec4(lessThan(token + uvec4(0, 1, 2, 3), uvec4(first_seen(own)))));
			if (SEEN) {
				const uint bits = seen_bits(min(row_first + j / HEADS, p.n_rows - 1), kv_head, token);
				blind = bvec4(uvec4(blind) | (uvec4(~bits) & uvec4(1, 2, 4, 8)));
			}
			vec4 s = scores(score[j]);
			if (SLOPES) s -= of_head(head, j) * abs(vec4(token + uvec4(0, 1, 2, 3)) - float(own));
			score[j] = mix(s, vec4(NO_TOKEN), blind);
		}
		tile_softmax(stored, 0, 0);
		tile_values(v_head + (stored == 0 ? 0 : token * PIECES), stored, 0, 0);
	}
	state_finish();

	const bool partial = (FLAGS & PROMPT_STATE) != 0;
	const uint stride = partial ? HEAD_DIM + 2 : HEAD_DIM; // words of a head in the result
	const uint lane_row = LANE / ROW_LANES, chunk = LANE % ROW_LANES;
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		const uint row = row_first + j / HEADS;
		const bool mine = row < p.n_rows && j % HEADS < n_heads_here;
		uint to = row;
		if (partial && mine) to = row_parts[KV_AT(4) + row * 2] + row_parts[KV_AT(4) + row * 2 + 1] - 1;
		const uint result_at = KV_AT(0) + (to * p.n_heads + head + j % HEADS) * stride;
		const float sink = SINKS ? of_head(head, j) : NO_TOKEN;
		const float most = SINKS ? max(top[j], sink) : top[j];
		const float shrink = SINKS ? exp(top[j] - most) : 1.0; // factor for what has been summed
		const float all = SINKS ? total[j] * shrink + exp(sink - most) : total[j];
		const bool none = SEEN && all == 0.0;
		const float factor = partial ? 1.0 : SINKS ? shrink / all : none ? 0.0 : 1.0 / all;
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = chunk + o * ROW_LANES;
			if (mine && lane_row == 0 && c < CHUNKS)
				[[unroll]] for (uint i = 0; i < 8; i++)
					result[result_at + c * 8 + i] = acc[(j * OWN + o) * 2 + i / 4][i % 4] * factor;
		}
		if ((FLAGS & PROMPT_LSE) != 0 && mine && LANE == 0)
			lse[KV_AT(5) + row * p.n_heads + head + j % HEADS] = none ? uintBitsToFloat(MINUS_INF) : most + log(all);
		if (partial && mine && LANE == 0) {
			result[result_at + HEAD_DIM] = top[j];
			result[result_at + HEAD_DIM + 1] = total[j];
		}
	}
}
