// score_prompt.comp for software drivers: attention that a prompt's tokens receive from chosen rows, causal.
//
//   0 score (n_kv_heads, stride) f32, read and written | 1 q (T, n_heads, HEAD_DIM) f32 | 2 k (n_kv_heads, t_cap,
//   HEAD_DIM) f16 | 3 lse (T, n_heads) f32 | 4 rows (n_rows) u32 | 5 seen (T * p.seen_sets, p.seen_words) u32, only
//   with SCORE_SEEN: a row sees only tokens whose bit is set
// Grid: x = LOCAL_X quads of tokens, one each lane, y = kv head. A token's rows are added up by one lane in the order
// of the list, so the result is the same every time.
// Needs: HEAD_DIM a multiple of 8; LOCAL_X 8, in one subgroup; HEADS * ROWS at most 8.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 8;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
layout(constant_id = SPEC_ROWS) const uint ROWS = 1;
layout(push_constant) uniform Push { ScorePromptPush p; };
layout(std430, binding = 0) restrict buffer Score { float score[]; };
layout(binding = 1) uniform utextureBuffer q;
layout(binding = 2) uniform utextureBuffer k;
layout(std430, binding = 3) readonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 4) readonly restrict buffer Rows { uint rows[]; };
layout(std430, binding = 5) readonly restrict buffer Seen { uint seen[]; };
#define Q_AT 1
#define LSE_AT 3
#define ROWS_AT 4
#define SEEN_AT 5
#include "lib/seen.glsl"
#include "texel/score.glsl"

uint key_at[4]; // piece where each token's key begins

void load_quad(uint step, out uvec4 w[4]) {
	[[unroll]] for (uint t = 0; t < 4; t++) w[t] = texelFetch(k, int(key_at[t] + step));
}
void quad_half(uvec4 w[4], const uint half_, out vec4 k4[4]) {
	vec4 x[4];
	[[unroll]] for (uint t = 0; t < 4; t++) x[t] = half_ == 0 ? halves_low(w[t]) : halves_high(w[t]);
	[[unroll]] for (uint c = 0; c < 4; c++) k4[c] = vec4(x[0][c], x[1][c], x[2][c], x[3][c]);
}

void main() {
	const uint h = gl_WorkGroupID.y, share = p.n_heads / p.n_kv_heads, token = (gl_WorkGroupID.x * LOCAL_X + LANE) * 4;
	[[unroll]] for (uint t = 0; t < 4; t++) key_at[t] =
	    KV_AT(2) / 4 + (h * p.t_cap + min(token + t, p.n_tokens - 1)) * STEPS;
	vec4 sum = vec4(0);
	for (uint head = 0; head < share; head += HEADS)
		for (uint block = 0; block < p.n_rows; block += ROWS)
			sum += received(0, p.n_rows, block, h * share + head, min(HEADS, share - head), p.first, token);
	[[unroll]] for (uint t = 0; t < 4; t++)
		if (token + t < p.n_tokens) score[KV_AT(0) + h * p.stride + token + t] += sum[t] / float(share);
}
