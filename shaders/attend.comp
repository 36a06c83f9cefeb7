// Decode attention over cached pages: the partial softmax state of one row over a run of pages.
//
//   state(row, head) = (sum_t w_t v_t, max_t s_t, sum_t w_t),  s_t = q . k_t / sqrt(head_dim), w_t = exp(s_t - max)
// over the live tokens t of the work item's pages. attend_merge.comp turns the states of a row into its output.
//
//   binding  name      shape
//   0        parts     (n_parts, n_heads, HEAD_DIM + 2) f32, written
//   1        q         (T, n_heads, HEAD_DIM) f32
//   2        k_codes   pool words, [kv head][word][token] in a page
//   3        v_codes   pool words, [kv head][token][word] in a page
//   4        work      (n_work, 4) u32: row, first page, pages, part
//   5        pages     (n_pages, 4) u32: word offset of a page's K codes, V codes, K params, V params
//   6        live      (1 or n_kv_heads, n_pages, 4) u32: a bit per token
//
// Grid: x = work item * blocks + block of up to HEADS query heads of a kv head, y = kv head. K and V are read once for
// all query heads of a kv head; where those take several blocks, neighbouring workgroups read the same pages.
// Needs: HEAD_DIM a multiple of 8, LOCAL_X a multiple of 8 (a power of two), PAGE a multiple of 32.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/spec.h"
#include "shared/push.h"
#include "shared/kv_page.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 32;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
#define QUERIES HEADS

layout(push_constant) uniform Push { AttendPush p; };
layout(std430, binding = 0) writeonly restrict buffer Parts { float parts[]; };
#ifdef TEXEL
layout(binding = 1) uniform utextureBuffer q;
layout(binding = 2) uniform utextureBuffer k_codes;
layout(binding = 3) uniform utextureBuffer v_codes;
#else
layout(std430, binding = 1) readonly restrict buffer Q { uvec4 q[]; };
layout(std430, binding = 2) readonly restrict buffer KCodes { uvec4 k_codes[]; };
layout(std430, binding = 3) readonly restrict buffer VCodes { uvec4 v_codes[]; };
#endif
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
layout(std430, binding = 5) readonly restrict buffer Pages { uint pages[]; };
layout(std430, binding = 6) readonly restrict buffer Live { uint live[]; };

uint query_base = 0, n_queries = 0;
uint query_at(uint j) { return query_base + min(j, n_queries - 1) * (HEAD_DIM / 4); }

#include "lib/attend.glsl"

const uint PAGE_QUADS = PAGE / 4;

void load_k(uint at, out vec4 k[8]) {
	[[unroll]] for (uint i = 0; i < 4; i++) { // a word of 4 tokens: two channels of each
		const uvec4 w = LOAD4(k_codes, at + i * PAGE_QUADS);
		const vec2 a = unpackHalf2x16(w.x), b = unpackHalf2x16(w.y), c = unpackHalf2x16(w.z), d = unpackHalf2x16(w.w);
		k[i * 2] = vec4(a.x, b.x, c.x, d.x);
		k[i * 2 + 1] = vec4(a.y, b.y, c.y, d.y);
	}
}

void main() {
	const uint item = KV_AT(4) + (p.first_work + gl_WorkGroupID.x / p.blocks) * 4;
	const uint row = work[item], first_page = work[item + 1], n_pages = work[item + 2], part = work[item + 3];
	const uint kv_head = gl_WorkGroupID.y, share = p.n_heads / p.n_kv_heads;
	const uint block_first = gl_WorkGroupID.x % p.blocks * HEADS, head = kv_head * share + block_first;
	n_queries = min(HEADS, share - block_first);
	query_base = KV_AT(1) / 4 + (row * p.n_heads + head) * (HEAD_DIM / 4);
	queries_stage();
	state_clear();

	const uint n_quads = n_pages * PAGE_QUADS;
	for (uint first = 0; first < n_quads; first += QUADS) {
		const uint quad = min(first + LANE, n_quads - 1), page = first_page + quad / PAGE_QUADS, in_page = quad % PAGE_QUADS;
		const uint at = KV_AT(5) + page * 4, k_page = pages[at], v_page = pages[at + 1];
		uint seen = live[KV_AT(6) + kv_head * p.live_stride + page * 4 + in_page / 8] >> (in_page % 8 * 4) & 15u;
		if (first + LANE >= n_quads) seen = 0;

		const uint k_at = KV_AT(2) / 4 + (k_page + kv_k_word(kv_head, 0, 0, HEAD_DIM, 16, PAGE)) / 4 + in_page;
		[[unroll]] for (uint j = 0; j < HEADS; j++) score[j] = vec4(0);
		for (uint step = 0; step < HEAD_DIM / 8; step++) {
			vec4 k[8];
			load_k(k_at + step * 4 * PAGE_QUADS, k);
			score_step(step, k);
		}
		const bvec4 blind = equal(uvec4(seen) & uvec4(1, 2, 4, 8), uvec4(0));
		[[unroll]] for (uint j = 0; j < HEADS; j++) score[j] = mix(score[j] * p.scale, vec4(NO_TOKEN), blind);
		tile_softmax();
		tile_values(KV_AT(3) / 4 + (v_page + kv_v_word(kv_head, in_page * 4, 0, HEAD_DIM, 16, PAGE)) / 4, seen);
	}
	state_finish();

	const uint lane_row = LANE / ROW_LANES, chunk = LANE % ROW_LANES;
	[[unroll]] for (uint j = 0; j < HEADS; j++) {
		const uint at = KV_AT(0) + (part * p.n_heads + head + j) * (HEAD_DIM + 2);
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = chunk + o * ROW_LANES;
			if (j < n_queries && lane_row == 0 && c < CHUNKS)
				[[unroll]] for (uint i = 0; i < 8; i++) parts[at + c * 8 + i] = acc[(j * OWN + o) * 2 + i / 4][i % 4];
		}
		if (j < n_queries && LANE == 0) {
			parts[at + HEAD_DIM] = top[j];
			parts[at + HEAD_DIM + 1] = total[j];
		}
	}
}
