// Attention that a prompt's tokens receive from chosen rows, causal:
//   score[h][t] += sum over rows r with first + r >= t of mean over heads j of h of exp(q_rj . k_t * scale - lse_rj)
// With FLAGS (lib/saliency.glsl): 1 instead of exp(...), and a weight by |k_t|.
// (ZipCache eq. (7) and (8) on the probe rows of eq. (9); H2O and MiKV with every row.)
//
//   0 score (n_kv_heads, stride) f32, read and written | 1 q (T, n_heads, HEAD_DIM) f32 | 2 k (n_kv_heads, t_cap,
//   HEAD_DIM) f16 | 3 lse (T, n_heads) f32 | 4 rows (n_rows) u32 | 5 seen (T * p.seen_sets, p.seen_words) u32, only
//   with SCORE_SEEN: a row sees only tokens whose bit is set
// Grid: x = LOCAL_X tokens, one per invocation, y = kv head. A key of at most 128 channels stays in registers for all
// rows (longer ones spill on some AMD chips). One invocation adds up one token's rows in order, so the result is the
// same every time.
// LATENT, a build for latent attention: 5 v (n_kv_heads, t_cap, ROPE_DIM) f16, rotated keys | 6 q_rope (T, n_heads,
// ROPE_DIM) f32 | 7 seen; a score is (q . k + q_rope . v) * scale.
// Needs: HEAD_DIM and ROPE_DIM multiples of 8.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { ScorePromptPush p; };
layout(std430, binding = 0) restrict buffer Score { float score[]; };
layout(std430, binding = 1) readonly restrict buffer Q { vec4 q[]; };
layout(std430, binding = 2) readonly restrict buffer K { uvec4 k[]; };
layout(std430, binding = 3) readonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 4) readonly restrict buffer Rows { uint rows[]; };
#ifdef LATENT
layout(constant_id = SPEC_ROPE_DIM) const uint ROPE_DIM = 64;
layout(std430, binding = 5) readonly restrict buffer V { uvec4 v[]; };
layout(std430, binding = 6) readonly restrict buffer QRope { vec4 q_rope[]; };
#define SEEN_AT 7
#else
#define SEEN_AT 5
#endif
layout(std430, binding = SEEN_AT) readonly restrict buffer Seen { uint seen[]; };
#include "lib/seen.glsl"

#include "lib/saliency.glsl"

const uint PIECES = HEAD_DIM / 8; // 16-byte pieces of a key

void main() {
	const uint h = gl_WorkGroupID.y, t = gl_GlobalInvocationID.x, share = p.n_heads / p.n_kv_heads;
	const uint key = min(t, p.n_tokens - 1);
	const uint own_at = KV_AT(2) / 4 + (h * p.t_cap + key) * PIECES;
	uvec4 own[PIECES];
	if (PIECES <= 16) [[unroll]] for (uint i = 0; i < PIECES; i++) own[i] = k[own_at + i];
	float sum = 0;
	for (uint i = 0; i < p.n_rows; i++) {
		const uint r = rows[KV_AT(4) + i];
		if (p.first + r < t) continue;
		if (SEEN && (seen_bits(r, h, key) & 1) == 0) continue;
		float mean = 0;
		for (uint j = 0; j < share; j++) {
			const uint head = r * p.n_heads + h * share + j, at = KV_AT(1) / 4 + head * (HEAD_DIM / 4);
			float dot_ = 0;
			[[unroll]] for (uint c = 0; c < PIECES; c++) {
				const uvec4 key8 = PIECES <= 16 ? own[c] : k[own_at + c];
				const vec4 a = q[at + 2 * c], b = q[at + 2 * c + 1];
				dot_ += dot(a, vec4(unpackHalf2x16(key8.x), unpackHalf2x16(key8.y)));
				dot_ += dot(b, vec4(unpackHalf2x16(key8.z), unpackHalf2x16(key8.w)));
			}
#ifdef LATENT
			const uint rope_at = KV_AT(6) / 4 + head * (ROPE_DIM / 4),
			           v_at = KV_AT(5) / 4 + (h * p.t_cap + key) * (ROPE_DIM / 8);
			for (uint c = 0; c < ROPE_DIM / 8; c++) {
				const uvec4 key8 = v[v_at + c];
				const vec4 a = q_rope[rope_at + 2 * c], b = q_rope[rope_at + 2 * c + 1];
				dot_ += dot(a, vec4(unpackHalf2x16(key8.x), unpackHalf2x16(key8.y)));
				dot_ += dot(b, vec4(unpackHalf2x16(key8.z), unpackHalf2x16(key8.w)));
			}
#endif
			mean += BY_ATTENTION ? exp(score_of(dot_) - lse[KV_AT(3) + head]) : 1.0;
		}
		sum += mean;
	}
	if (BY_NORM) {
		float squares = 0;
		for (uint c = 0; c < PIECES; c++) {
			const uvec4 w = k[own_at + c];
			[[unroll]] for (uint i = 0; i < 4; i++) squares += dot(unpackHalf2x16(w[i]), unpackHalf2x16(w[i]));
		}
		sum *= key_weight(vec4(squares)).x;
	}
	if (t < p.n_tokens) score[KV_AT(0) + h * p.stride + t] += sum / float(share);
}
