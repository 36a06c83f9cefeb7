// Attention that the live tokens in f16 pages receive from the rows their work item lists:
//   score[h][slot] += sum over rows r of mean over heads j of h of exp(q_rj . k * scale - lse_rj)
// See score_prompt.comp.
//
//   0 score f32 words, read and written | 1 q (T, n_heads, HEAD_DIM) f32
//   2 k_codes pool words, [kv head][word][token] in a page | 3 lse (T, n_heads) f32 | 4 rows (n_rows) u32
//   5 work (n_work, SCORE_WORDS) u32, ScoreWork | 6 tables u32 words: page entries, live bits
// LATENT, a build for latent attention: 7 v_codes pool words, [kv head][token][word] in a page, rotated keys | 8 q_rope
// (T, n_heads, ROPE_DIM) f32; a score is (q . k + q_rope . v) * scale.
// Grid: x = work item, y = kv head; an invocation takes every LOCAL_X-th token of the item's pages.
// Needs: HEAD_DIM and ROPE_DIM multiples of 4.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 32;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(push_constant) uniform Push { ScoreSlotsPush p; };
layout(std430, binding = 0) restrict buffer Score { float score[]; };
layout(std430, binding = 1) readonly restrict buffer Q { vec4 q[]; };
layout(std430, binding = 2) readonly restrict buffer KCodes { uint k_codes[]; };
layout(std430, binding = 3) readonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 4) readonly restrict buffer Rows { uint rows[]; };
layout(std430, binding = 5) readonly restrict buffer WorkTable { uint work[]; };
const ScoreWork FIELD = ScoreWork(WORDS_8);
layout(std430, binding = 6) readonly restrict buffer Tables { uint tables[]; };
#ifdef LATENT
layout(constant_id = SPEC_ROPE_DIM) const uint ROPE_DIM = 64;
layout(std430, binding = 7) readonly restrict buffer VCodes { uint v_codes[]; };
layout(std430, binding = 8) readonly restrict buffer QRope { vec4 q_rope[]; };
#endif
#include "lib/saliency.glsl"

void main() {
	const uint h = gl_WorkGroupID.y, share = p.n_heads / p.n_kv_heads,
	           item = KV_AT(5) + (p.first_work + gl_WorkGroupID.x) * SCORE_WORDS;
	const uint first = KV_AT(4) + work[item + FIELD.first], n_rows = work[item + FIELD.n],
	           n_tokens = work[item + FIELD.n_pages] * PAGE;
	const uint pages = KV_AT(6) + work[item + FIELD.pages],
	           live = KV_AT(6) + work[item + FIELD.live] + h * work[item + FIELD.live_stride];
	const uint score_at = KV_AT(0) + work[item + FIELD.score] + h * work[item + FIELD.score_stride];
	for (uint t = gl_LocalInvocationIndex; t < n_tokens; t += LOCAL_X) {
		const uint page = t / PAGE, in_page = t % PAGE;
		const uint seen = tables[live + page * 4 + in_page / 32] >> (in_page % 32) & 1u;
		if (seen == 0) continue;
		const uint at = KV_AT(2) + tables[pages + page * 4] + kv_k_word(h, 0, in_page, HEAD_DIM, 16, PAGE);
#ifdef LATENT
		const uint v_at = KV_AT(7) + tables[pages + page * 4 + 1] + kv_v_word(h, in_page, 0, ROPE_DIM, 16, PAGE);
#endif
		float sum = 0;
		for (uint i = 0; i < n_rows; i++) {
			const uint head = rows[first + i] * p.n_heads + h * share;
			for (uint j = 0; j < share; j++) {
				const uint from = KV_AT(1) / 4 + (head + j) * (HEAD_DIM / 4);
				float dot_ = 0;
				for (uint c = 0; c < HEAD_DIM / 4; c++)
					dot_ += dot(q[from + c], vec4(unpackHalf2x16(k_codes[at + 2 * c * PAGE]),
					                              unpackHalf2x16(k_codes[at + (2 * c + 1) * PAGE])));
#ifdef LATENT
				const uint rope_from = KV_AT(8) / 4 + (head + j) * (ROPE_DIM / 4);
				for (uint c = 0; c < ROPE_DIM / 4; c++)
					dot_ += dot(q_rope[rope_from + c],
					            vec4(unpackHalf2x16(v_codes[v_at + 2 * c]), unpackHalf2x16(v_codes[v_at + 2 * c + 1])));
#endif
				sum += BY_ATTENTION ? exp(score_of(dot_) - lse[KV_AT(3) + head + j]) : 1.0;
			}
		}
		if (BY_NORM) {
			float squares = 0;
			for (uint c = 0; c < HEAD_DIM / 2; c++) {
				const vec2 pair = unpackHalf2x16(k_codes[at + c * PAGE]);
				squares += dot(pair, pair);
			}
			sum *= key_weight(vec4(squares)).x;
		}
		score[score_at + t] += sum / float(share);
	}
}
