// score_slots.comp for software drivers: attention that the live tokens in f16 pages receive from listed rows.
//
//   0 score f32 words, read and written | 1 q (T, n_heads, HEAD_DIM) f32
//   2 k pool words, [kv head][word][token] in a page | 3 lse (T, n_heads) f32 | 4 rows (n_rows) u32
//   5 work (n_work, SCORE_WORDS) u32, ScoreWork | 6 tables u32 words: page entries, live bits
// Grid: x = work item, y = kv head; a lane takes every LOCAL_X-th quad of the item's pages.
// Needs: HEAD_DIM a multiple of 8; LOCAL_X 8, in one subgroup; HEADS * ROWS at most 8.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 8;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
layout(constant_id = SPEC_ROWS) const uint ROWS = 1;
layout(push_constant) uniform Push { ScoreSlotsPush p; };
layout(std430, binding = 0) restrict buffer Score { float score[]; };
layout(binding = 1) uniform utextureBuffer q;
layout(binding = 2) uniform utextureBuffer k;
layout(std430, binding = 3) readonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 4) readonly restrict buffer Rows { uint rows[]; };
layout(std430, binding = 5) readonly restrict buffer WorkTable { uint work[]; };
const ScoreWork FIELD = ScoreWork(WORDS_8);
layout(std430, binding = 6) readonly restrict buffer Tables { uint tables[]; };
#define Q_AT 1
#define LSE_AT 3
#define ROWS_AT 4
#include "texel/score.glsl"

const uint PAGE_QUADS = PAGE / 4;
uint key_at = 0; // piece with the quad's first word

void load_quad(uint step, out uvec4 w[4]) {
	[[unroll]] for (uint i = 0; i < 4; i++) w[i] = texelFetch(k, int(key_at + (step * 4 + i) * PAGE_QUADS));
}
void quad_half(uvec4 w[4], const uint half_, out vec4 k4[4]) {
	[[unroll]] for (uint i = 0; i < 2; i++) {
		const uvec4 x = w[half_ * 2 + i];
		const vec2 a = unpackHalf2x16(x.x), b = unpackHalf2x16(x.y), c = unpackHalf2x16(x.z), d = unpackHalf2x16(x.w);
		k4[i * 2] = vec4(a.x, b.x, c.x, d.x);
		k4[i * 2 + 1] = vec4(a.y, b.y, c.y, d.y);
	}
}

void main() {
	const uint h = gl_WorkGroupID.y, share = p.n_heads / p.n_kv_heads,
	           item = KV_AT(5) + (p.first_work + gl_WorkGroupID.x) * SCORE_WORDS;
	const uint first_row = work[item + FIELD.first], n_rows = work[item + FIELD.n],
	           n_quads = work[item + FIELD.n_pages] * PAGE_QUADS;
	const uint pages = KV_AT(6) + work[item + FIELD.pages],
	           live = KV_AT(6) + work[item + FIELD.live] + h * work[item + FIELD.live_stride];
	const uint score_at = KV_AT(0) + work[item + FIELD.score] + h * work[item + FIELD.score_stride];
	for (uint first = 0; first < n_quads; first += LOCAL_X) {
		const uint quad = min(first + LANE, n_quads - 1), page = quad / PAGE_QUADS, in_page = quad % PAGE_QUADS;
		key_at = KV_AT(2) / 4 + (tables[pages + page * 4] + kv_k_word(h, 0, 0, HEAD_DIM, 16, PAGE)) / 4 + in_page;
		uint seen = tables[live + page * 4 + in_page / 8] >> (in_page % 8 * 4) & 15u;
		if (first + LANE >= n_quads) seen = 0;
		vec4 sum = vec4(0);
		for (uint head = 0; head < share; head += HEADS)
			for (uint block = 0; block < n_rows; block += ROWS) // every row sees every token here
				sum += received(first_row, n_rows, block, h * share + head, min(HEADS, share - head), 0x7fffffffu, 0);
		[[unroll]] for (uint t = 0; t < 4; t++)
			if ((seen >> t & 1u) != 0) score[score_at + quad * 4 + t] += sum[t] / float(share);
	}
}
