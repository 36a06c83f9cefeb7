// Attention over cached pages: the partial softmax states of some rows over a run of pages.
//
//   state(row, head) = (sum_t w_t v_t, max_t s_t, sum_t w_t),  s_t = q . k_t / sqrt(head_dim), w_t = exp(s_t - max)
// over the live tokens t of the work item's pages. attend_merge.comp turns the states of a row into its output. With
// `merges`, for rows of few states, the workgroup that writes the last state of a row and kv head merges them itself
// (lib/merge.glsl).
//
//   binding  name      shape
//   0        parts     (n_parts, n_heads, HEAD_DIM + 2) f32, written; with `merges` also read
//   1        q         (T, n_heads, HEAD_DIM) f32
//   2        k_codes   pool words, [kv head][word][token] in a page
//   3        v_codes   pool words, [kv head][token][word] in a page
//   4        work      (n_work, 8) u32, AttendWork
//   5        tables    u32 words: page entries, live bits, where V's channel factors are
//   6        k_params  pool words: (scale, zero) per channel or per token and run of K_GROUP channels
//   7        v_params  pool words: (scale, zero) per token and run of V_GROUP channels
//   8        v_factors pool words, halves
//   9        balance   u32 words: channel balancers (n_kv_heads, HEAD_DIM) f16
//   10       result    (T, n_heads, HEAD_DIM) f32, written; this and the next two only with `merges`
//   11       row_parts (T, 2) u32: first part, parts of a row
//   12       done      (T, n_kv_heads) u32: heads' states written so far; 0 before and after
//   13       sinks     (n_heads) f32; only with `merges` and ATTEND_SINKS
//   backends/ops.h has AttendWork, shared/kv_page.h says where codes and parameters are in a page.
//
// K per channel: q . k = sum_c q_c scale_c code_c + sum_c q_c zero_c, the second sum once per page. K per token:
// q . k = sum_runs scale (sum_c q_c code_c) + zero (sum_c q_c).
// With norms: q . k = norm (sum_c q_c value(code_c)) + sum_c q_c mean_c. Rotated keys meet rotated queries; the sum of
// rotated values is rotated back at the end.
// FLAGS: ATTEND_*.
// Builds: INT8 uses integer dot products for K or V (ATTEND_K_DOT, ATTEND_V_DOT). Queries and weights are then rounded
// to int8: lib/keys_dot.glsl, lib/values_dot.glsl.
//
// Grid: x = (work item * row_blocks + block of TOKENS rows) * blocks + block of up to HEADS query heads of a kv head,
// y = kv head. K and V are read and decoded once for all rows and heads of a workgroup; where those take several
// blocks, neighbouring workgroups read the same pages. A row's bits do not depend on the other rows of its block.
// Needs: HEAD_DIM a multiple of 8, LOCAL_X a power of two, PAGE 32, 64 or 128; runs that are multiples of 32 or of
// HEAD_DIM.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/spec.h"
#include "lib/work.glsl"
#include "shared/push.h"
#include "shared/kv_page.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 32;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_K_BITS) const uint K_BITS = 16;
layout(constant_id = SPEC_V_BITS) const uint V_BITS = 16;
layout(constant_id = SPEC_K_GROUP) const uint K_GROUP = 32;
layout(constant_id = SPEC_V_GROUP) const uint V_GROUP = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
layout(constant_id = SPEC_COLS) const uint TOKENS = 1;
layout(constant_id = SPEC_QUAD_LANES) const uint QUAD_LANES = 1; // or 2, if QUERIES is even
const uint QUERIES = HEADS * TOKENS; // query j: row j / HEADS, head j % HEADS
const bool K_BOOK = (FLAGS & ATTEND_K_CODEBOOK) != 0u, V_BOOK = (FLAGS & ATTEND_V_CODEBOOK) != 0u,
           K_ROTATE = (FLAGS & ATTEND_K_ROTATED) != 0u;
const bool V_ROTATE = (FLAGS & ATTEND_V_ROTATED) != 0u, K_BYTES = (FLAGS & ATTEND_K_BYTES) != 0u,
           V_BYTES = (FLAGS & ATTEND_V_BYTES) != 0u;
const bool K_MEAN = (FLAGS & ATTEND_K_MEANS) != 0u;
const bool K_CHANNEL = (FLAGS & ATTEND_K_PER_CHANNEL) != 0u && K_BITS < 16u,
           K_TOKEN = (FLAGS & ATTEND_K_PER_CHANNEL) == 0u && K_BITS < 16u && !K_BOOK;
const bool V_NORM = (FLAGS & ATTEND_V_FACTORS) != 0u && V_BITS < 16u, BALANCE = (FLAGS & ATTEND_BALANCE) != 0u;
const bool SOFTCAP = (FLAGS & ATTEND_SOFTCAP) != 0u, SINKS = (FLAGS & ATTEND_SINKS) != 0u;
#ifdef INT8
const bool K_DOT = (FLAGS & ATTEND_K_DOT) != 0u, V_DOT = (FLAGS & ATTEND_V_DOT) != 0u;
#else
const bool K_DOT = false, V_DOT = false;
#endif
#define V_PARAMS

layout(push_constant) uniform Push { AttendPush p; };
layout(std430, binding = 0) coherent buffer Parts { vec2 parts[]; };
layout(std430, binding = 1) readonly buffer Q { uvec4 q[]; };
layout(std430, binding = 2) readonly buffer KCodes { uvec4 k_codes[]; };
layout(std430, binding = 3) readonly buffer VCodes { uvec4 v_codes[]; };
layout(std430, binding = 3) readonly buffer VWords { uint v_words[]; };
layout(std430, binding = 6) readonly buffer KParams { uvec4 k_params[]; };
layout(std430, binding = 6) readonly buffer KParamWords { uint k_param_words[]; };
layout(std430, binding = 7) readonly buffer VParams { uvec4 v_params[]; };
layout(std430, binding = 7) readonly buffer VParamWords { uint v_param_words[]; };
layout(std430, binding = 8) readonly buffer VFactors { uvec4 v_factors[]; };
layout(std430, binding = 9) readonly buffer Balance { uvec4 balance[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const AttendWork FIELD = AttendWork(WORDS_8);
layout(std430, binding = 5) readonly restrict buffer Tables { uint tables[]; };
layout(std430, binding = 10) writeonly buffer Result { vec2 result[]; };
layout(std430, binding = 11) readonly buffer RowParts { uint row_parts[]; };
layout(std430, binding = 12) coherent buffer Done { uint done[]; };
layout(std430, binding = 13) readonly buffer Sinks { float sinks[]; };

uint query_base = 0, row_first = 0, rows_here = 0, heads_here = 0, kv_head = 0;
uint pages_at = 0, balance_at = 0; // words in tables and balance: the item's first page entry, the balancer
uint live_at = 0, factors_at = 0;  // words in tables: live bits of the item's first page for the kv head, its factors
uint n_quads = 0;                  // of the item's pages
uint query_at(uint j) {
	const uint row = row_first + min(j / HEADS, max(rows_here, 1) - 1);
	return query_base + (row * p.n_heads + min(j % HEADS, heads_here - 1)) * (HEAD_DIM / 4);
}
#include "lib/key_scales.glsl"
const bool Q_STAGED = K_DOT && K_CHANNEL, K_STAGED = SCALES > 0u || Q_STAGED; // staged in memory that weights use next

#ifdef INT8
#include "lib/dot.glsl"
#include "lib/dot_memory.glsl"
#endif

#include "lib/attend.glsl"
#include "lib/merge.glsl"
#include "lib/softcap.glsl"
#include "lib/keys.glsl"
#include "lib/live_quads.glsl"

// Word of a page's parameters where the kv head's largest norm is, or the largest (scale, zero) of n parameters in
// bytes.
uint largest_word(const bool norms, uint n) {
	return norms ? kv_norm_scale_word(p.n_kv_heads, kv_head, PAGE) : kv_byte_largest_word(n, kv_head);
}

// All lanes, once this workgroup's states of `row` are written. Workgroups of other formats' dispatches count too.
void merge_if_last(uint row) {
	memoryBarrierBuffer(); // states, before the count that says they are there
	barrier();
	const uint counter = KV_AT(12) + row * p.n_kv_heads + kv_head, share = p.n_heads / p.n_kv_heads;
	if (LANE == 0)
		q_s[0].x = float(atomicAdd(done[counter], heads_here) + heads_here); // queries are not needed any more
	barrier();
	const uint first = row_parts[KV_AT(11) + row * 2], n = row_parts[KV_AT(11) + row * 2 + 1];
	if (q_s[0].x != float(n * share)) return;
	memoryBarrierBuffer();
	if (LANE == 0) done[counter] = 0;
	for (uint i = LANE; i < share * PAIRS; i += LOCAL_X) {
		const uint head = kv_head * share + i / PAIRS, pair = i % PAIRS;
		const uint at = KV_AT(0) / 2 + (first * p.n_heads + head) * (PAIRS + 1);
		float top, weights;
		result[KV_AT(10) / 2 + (row * p.n_heads + head) * PAIRS + pair] =
			merge_few(at, p.n_heads * (PAIRS + 1), n, pair, SINKS ? sinks[KV_AT(13) + head] : NO_TOKEN, top, weights);
	}
}

// Adds a tile of quads: the lane's one, whether the tile has it, the page of the first (unless GATHER), and how many of
// the tile exist.
void add_tile(uint quad, bool exists, uint tile_page, uint quads) {
	const uint page = quad / PAGE_QUADS, in_page = quad % PAGE_QUADS;
	const uint at = pages_at + page * 4, v_page = tables[at + 1];
	const uint seen = exists ? live_word(live_at, quad) >> (in_page % 8 * 4) & 15u : 0u;

	tile_scores(at, tile_page, n_quads / PAGE_QUADS - 1, page, in_page);
	const bvec4 blind = equal(uvec4(seen) & uvec4(1, 2, 4, 8), uvec4(0));
	[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) score[m] = mix(scores(score[m]), vec4(NO_TOKEN), blind);
	const uint v_word = v_page + kv_v_word(kv_head, in_page * 4, 0, HEAD_DIM, V_BITS, PAGE);
	const uint v_params_at = KV_AT(7) + tables[at + 3]; // of the page
	uint v_param = 0;
	if (V_BITS < 16 && V_BOOK) v_param = v_params_at + kv_norm_word(kv_head, in_page * 4, PAGE, V_BYTES ? 8u : 16u);
	if (V_BITS < 16 && !V_BOOK)
		v_param = v_params_at + kv_token_param(kv_head, 0, in_page * 4, HEAD_DIM, V_GROUP, PAGE) / (V_BYTES ? 2 : 1);
	uint v_largest = 0;
	if (V_BYTES)
		v_largest = v_params_at + largest_word(V_BOOK, kv_token_param_words(p.n_kv_heads, HEAD_DIM, V_GROUP, PAGE));
	const uint v_factor = V_NORM ? KV_AT(8) + tables[factors_at + page] + kv_factor_word(kv_head, 0, HEAD_DIM) : 0;
	tile_softmax(seen, v_param, v_largest);
#ifdef INT8
	if (V_DOT) {
		tile_values_dot(KV_AT(3) + v_word, v_factor);
		return;
	}
#endif
	tile_values(V_BITS == 16 ? KV_AT(3) / 4 + v_word / 4 : KV_AT(3) + v_word, seen, v_param,
	            V_NORM ? v_factor : v_largest, quads);
}

void main() {
	const uint row_block = gl_WorkGroupID.x / p.blocks % p.row_blocks, in_item = row_block * TOKENS;
	const uint item = KV_AT(4) + (p.first_work + gl_WorkGroupID.x / p.blocks / p.row_blocks) * ATTEND_WORDS;
	const uint row = work[item + FIELD.row], part = work[item + FIELD.part], n_pages = work[item + FIELD.n_pages];
	factors_at = KV_AT(5) + work[item + FIELD.factors];
	live_at = KV_AT(5) + work[item + FIELD.live] + gl_WorkGroupID.y * work[item + FIELD.live_stride];
	pages_at = KV_AT(5) + work[item + FIELD.pages];
	balance_at = KV_AT(9) + work[item + FIELD.balance];
	row_first = min(row + in_item, p.n_rows - 1);
	rows_here =
	    min(min(TOKENS, p.item_rows - in_item), p.n_rows - min(row + in_item, p.n_rows)); // 0: behind the last row
	const uint share = p.n_heads / p.n_kv_heads, block_first = gl_WorkGroupID.x % p.blocks * HEADS;
	kv_head = gl_WorkGroupID.y;
	const uint head = kv_head * share + block_first;
	heads_here = min(HEADS, share - block_first);
	query_base = KV_AT(1) / 4 + head * (HEAD_DIM / 4);
	queries_stage();
	state_clear();
	if (K_ROTATE) rotate_staged(STAGED_PIECES, false);
	if (K_TOKEN) sum_queries();
	keys_start();

	n_quads = n_pages * PAGE_QUADS;
	if (GATHER) {
		for (uint window = 0; window < n_quads; window += WINDOW_QUADS) {
			const uint n = live_quads(live_at, window, n_quads);
			for (uint first = 0; first < n; first += QUADS)
				add_tile(window + live_quad(min(first + QUAD, n - 1)), first + QUAD < n, 0, n - first);
		}
	} else {
		for (uint first = 0; first < n_quads; first += QUADS) {
			if (SKIP && dead_tile(live_at, first, n_quads)) continue;
			// Lanes past the last quad repeat the last 8 quads, a whole block of lib/values_dot.glsl, which takes a
			// block's address from its first lane.
			add_tile(min(first + QUAD, n_quads - 8 + QUAD % 8), first + QUAD < n_quads, first / PAGE_QUADS,
			         n_quads - first);
		}
	}
	state_finish();
	if (V_ROTATE) values_rotate_back();

	const uint lane_row = LANE / ROW_LANES, chunk = LANE % ROW_LANES;
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		const bool mine = j / HEADS < rows_here && j % HEADS < heads_here;
		const uint to =
		    KV_AT(0) / 2 + ((part + (in_item + j / HEADS) * p.part_step) * p.n_heads + head + j % HEADS) * (PAIRS + 1);
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = chunk + o * ROW_LANES;
			if (mine && lane_row == 0 && c < CHUNKS)
				[[unroll]] for (uint i = 0; i < 4; i++) {
					const vec4 x = acc[(j * OWN + o) * 2 + i / 2];
					parts[to + c * 4 + i] = i % 2 == 0 ? x.xy : x.zw;
				}
		}
		if (mine && LANE == j % QUAD_LANES) parts[to + PAIRS] = vec2(top[j / QUAD_LANES], total[j / QUAD_LANES]);
	}
	if (p.merges != 0) merge_if_last(row);
}
