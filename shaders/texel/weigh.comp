// weigh.comp for software drivers: attention that the live tokens of pages of any format receive from one row.
//
//   0 weight f32 words, written (and read where several blocks of heads add up) | 1 q (T, n_heads, HEAD_DIM) f32
//   2 k_codes pool words, [kv head][word][token] in a page | 3 lse (T, n_heads) f32
//   4 work (n_work, WEIGH_WORDS) u32, WeighWork | 5 tables u32 words: page entries, live bits
//   6 k_params pool words | 7 balance u32 words: channel balancers (n_kv_heads, HEAD_DIM) f16
// Grid: x = work item, y = kv head; a lane takes a quad of tokens of each tile.
// Needs: HEAD_DIM a multiple of 8, LOCAL_X 8 in one subgroup, PAGE 32, 64 or 128; runs that are multiples of 32 or of
// HEAD_DIM. A page has at least LOCAL_X quads.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 8;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_K_BITS) const uint K_BITS = 16;
layout(constant_id = SPEC_K_GROUP) const uint K_GROUP = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
const uint QUERIES = HEADS;
const bool K_CHANNEL = (FLAGS & ATTEND_K_PER_CHANNEL) != 0u && K_BITS < 16u,
           K_TOKEN = (FLAGS & ATTEND_K_PER_CHANNEL) == 0u && K_BITS < 16u;
const bool K_BOOK = false, K_MEAN = false, K_BYTES = (FLAGS & ATTEND_K_BYTES) != 0u, OWN_QUERY = false,
           BALANCE = (FLAGS & ATTEND_BALANCE) != 0u, SOFTCAP = (FLAGS & ATTEND_SOFTCAP) != 0u;
#define QUERY_PAGES

layout(push_constant) uniform Push { WeighPush p; };
layout(std430, binding = 0) restrict buffer Weight { float weight[]; };
layout(binding = 1) uniform utextureBuffer q;
layout(binding = 2) uniform utextureBuffer k_codes;
layout(std430, binding = 3) readonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const WeighWork FIELD = WeighWork(WORDS_8);
layout(std430, binding = 5) readonly restrict buffer Tables { uint tables[]; };
layout(binding = 6) uniform utextureBuffer k_params;
layout(binding = 7) uniform utextureBuffer balance;

uint query_base = 0, heads_here = 0, kv_head = 0;
uint balance_at = 0; // word of the balancer
uint query_at(uint j) { return query_base + min(j, heads_here - 1) * (HEAD_DIM / 4); }
const uint PAGE_QUADS = PAGE / 4;
void queries_fit(uint c);

#include "texel/queries.glsl"
#include "texel/keys.glsl"
#include "lib/softcap.glsl"

void main() {
	kv_head = gl_WorkGroupID.y;
	const uint item = KV_AT(4) + (p.first_work + gl_WorkGroupID.x) * WEIGH_WORDS;
	const uint row = work[item + FIELD.row], n_quads = work[item + FIELD.n_pages] * PAGE_QUADS,
	           pages = KV_AT(5) + work[item + FIELD.pages];
	const uint live = KV_AT(5) + work[item + FIELD.live] + kv_head * work[item + FIELD.live_stride];
	const uint to = KV_AT(0) + work[item + FIELD.weight] + kv_head * work[item + FIELD.weight_stride];
	balance_at = KV_AT(7) + work[item + FIELD.balance];
	const uint share = p.n_heads / p.n_kv_heads;
	for (uint block = 0; block < share; block += HEADS) {
		const uint head = row * p.n_heads + kv_head * share + block;
		heads_here = min(HEADS, share - block);
		query_base = KV_AT(1) / 4 + head * (HEAD_DIM / 4);
		if (K_TOKEN) sum_queries();
		for (uint first = 0; first < n_quads; first += QUADS) {
			const uint quad = first + LANE, page = quad / PAGE_QUADS, in_page = quad % PAGE_QUADS;
			const uint seen = tables[live + page * 4 + in_page / 8] >> (in_page % 8 * 4) & 15u;
			quad_scores(pages + page * 4, page, in_page);
			vec4 sum = vec4(0);
			[[unroll]] for (uint j = 0; j < HEADS; j++)
				if (j < heads_here) sum += exp(scores(score[j]) - lse[KV_AT(3) + head + j]);
			for (uint t = 0; t < 4; t++) {
				const uint at = to + quad * 4 + t;
				const float older = block == 0u ? 0.0 : weight[at];
				weight[at] = (seen >> t & 1u) == 0u ? -1.0 : sum[t] / float(share) + older;
			}
		}
	}
}
