// Attention that the live tokens of pages of any format receive from one row:
//   weight[h][slot] = mean over the query heads j of h of exp(q_j . k * scale - lse_j); -1 where no token is live
//
//   binding  name     shape
//   0        weight   f32 words, written (and read where several blocks of heads add up)
//   1        q        (T, n_heads, HEAD_DIM) f32
//   2        k_codes  pool words, [kv head][word][token] in a page
//   3        lse      (T, n_heads) f32
//   4        work     (n_work, 8) u32, WeighWork
//   5        tables   u32 words: page entries, live bits
//   6        k_params pool words: (scale, zero) per channel or per token and run of K_GROUP channels
//   7        balance  u32 words: channel balancers (n_kv_heads, HEAD_DIM) f16
// FLAGS: ATTEND_* of keys.
// Builds: INT8 takes integer dot products of keys (lib/keys_dot.glsl), with ATTEND_K_DOT.
// Grid: x = work item, y = kv head; a lane takes a quad of tokens of each tile. HEADS query heads share each decoded
// key.
// Needs: HEAD_DIM a multiple of 8, LOCAL_X a power of two, PAGE 32, 64 or 128; runs that are multiples of 32 or of
// HEAD_DIM.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 32;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_K_BITS) const uint K_BITS = 16;
layout(constant_id = SPEC_K_GROUP) const uint K_GROUP = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
const uint QUERIES = HEADS, QUAD_LANES = 1;
const bool K_CHANNEL = (FLAGS & ATTEND_K_PER_CHANNEL) != 0u && K_BITS < 16u,
           K_TOKEN = (FLAGS & ATTEND_K_PER_CHANNEL) == 0u && K_BITS < 16u;
#ifdef INT8
const bool K_DOT = (FLAGS & ATTEND_K_DOT) != 0u;
const bool V_DOT = false, V_BOOK = false; // lib/dot_memory.glsl uses them
const uint V_GROUP = HEAD_DIM;
#else
const bool K_DOT = false;
#endif
const bool K_BOOK = false, K_MEAN = false, K_BYTES = (FLAGS & ATTEND_K_BYTES) != 0u,
           BALANCE = (FLAGS & ATTEND_BALANCE) != 0u, SOFTCAP = (FLAGS & ATTEND_SOFTCAP) != 0u;

layout(push_constant) uniform Push { WeighPush p; };
layout(std430, binding = 0) restrict buffer Weight { float weight[]; };
layout(std430, binding = 1) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 2) readonly buffer KCodes { uvec4 k_codes[]; };
layout(std430, binding = 3) readonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const WeighWork FIELD = WeighWork(WORDS_8);
layout(std430, binding = 5) readonly restrict buffer Tables { uint tables[]; };
layout(std430, binding = 6) readonly buffer KParams { uvec4 k_params[]; };
layout(std430, binding = 6) readonly buffer KParamWords { uint k_param_words[]; };
layout(std430, binding = 7) readonly buffer Balance { uvec4 balance[]; };

uint query_base = 0, heads_here = 0, kv_head = 0;
uint pages_at = 0, balance_at = 0; // words in tables and balance: the item's first page entry, the balancer
uint query_at(uint j) { return query_base + min(j, heads_here - 1) * (HEAD_DIM / 4); }
#include "lib/key_scales.glsl"
shared vec4 work_s[SCALES > 0 ? SCALES : 1];
#ifdef INT8
#include "lib/dot.glsl"
#include "lib/dot_memory.glsl"
#endif
#include "lib/queries.glsl"
#include "lib/keys.glsl"
#include "lib/softcap.glsl"

void main() {
	kv_head = gl_WorkGroupID.y;
	const uint item = KV_AT(4) + (p.first_work + gl_WorkGroupID.x) * WEIGH_WORDS;
	const uint row = work[item + FIELD.row], n_pages = work[item + FIELD.n_pages], n_quads = n_pages * PAGE_QUADS;
	const uint live = KV_AT(5) + work[item + FIELD.live] + kv_head * work[item + FIELD.live_stride];
	const uint to = KV_AT(0) + work[item + FIELD.weight] + kv_head * work[item + FIELD.weight_stride];
	pages_at = KV_AT(5) + work[item + FIELD.pages];
	balance_at = KV_AT(7) + work[item + FIELD.balance];
	const uint share = p.n_heads / p.n_kv_heads;
	for (uint block = 0; block < share; block += HEADS) {
		const uint head = row * p.n_heads + kv_head * share + block;
		heads_here = min(HEADS, share - block);
		query_base = KV_AT(1) / 4 + head * (HEAD_DIM / 4);
		barrier();
		queries_stage();
		if (K_TOKEN) sum_queries();
		keys_start();
		for (uint first = 0; first < n_quads; first += QUADS) {
			const uint quad = min(first + LANE, n_quads - 1), page = quad / PAGE_QUADS, in_page = quad % PAGE_QUADS;
			const uint seen = tables[live + page * 4 + in_page / 8] >> (in_page % 8 * 4) & 15u;
			tile_scores(pages_at + page * 4, first / PAGE_QUADS, n_pages - 1, page, in_page);
			if (K_CHANNEL) barrier(); // the next tile has other pages' scales
			vec4 sum = vec4(0);
			[[unroll]] for (uint j = 0; j < HEADS; j++)
				if (j < heads_here) sum += exp(scores(score[j]) - lse[KV_AT(3) + head + j]);
			if (first + LANE < n_quads) [[unroll]] for (uint t = 0; t < 4; t++) {
				const uint at = to + quad * 4 + t;
				weight[at] = (seen >> t & 1u) == 0u ? -1.0 : sum[t] / float(share) + (block == 0u ? 0.0 : weight[at]);
			}
		}
	}
}
