// attend.comp for rows of a prompt, on devices with cooperative matrices: the same states, bindings and FLAGS.
//
// Codes are decoded to halves once for all rows and heads of a workgroup. Queries, keys, values and weights are halves;
// scores and sums are f32 (lib/attend_matrix.glsl). A tile is 32 or 16 tokens, so it lies in
// one page and its live bits in one word.
//
// Grid: x = (work item * row_blocks + block of TOKENS rows) * blocks + block of up to HEADS query heads of a kv head,
// y = kv head; HEADS * TOKENS <= QUERIES.
// M, N, K and requirements: as attend_prompt_matrix.comp; runs that are multiples of 32 or of HEAD_DIM.
#version 460
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_NV_cooperative_matrix : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_K_BITS) const uint K_BITS = 16;
layout(constant_id = SPEC_V_BITS) const uint V_BITS = 16;
layout(constant_id = SPEC_K_GROUP) const uint K_GROUP = 32;
layout(constant_id = SPEC_V_GROUP) const uint V_GROUP = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_QUERIES) const uint QUERIES = 64;
layout(constant_id = SPEC_TILE) const uint KEYS = 32;
layout(constant_id = SPEC_AHEAD) const bool AHEAD = true;
layout(constant_id = SPEC_KEPT) const bool KEPT = false;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
layout(constant_id = SPEC_COLS) const uint TOKENS = 64;
layout(constant_id = SPEC_SUBGROUP_COLS) const uint GROUPS = 2;
layout(constant_id = SPEC_MATRIX_M) const uint M = 16;
layout(constant_id = SPEC_MATRIX_N) const uint N = 16;
layout(constant_id = SPEC_MATRIX_K) const uint K = 16;
const bool K_BOOK = (FLAGS & ATTEND_K_CODEBOOK) != 0u, V_BOOK = (FLAGS & ATTEND_V_CODEBOOK) != 0u,
           Q_ROTATE = (FLAGS & ATTEND_K_ROTATED) != 0u;
const bool V_ROTATE = (FLAGS & ATTEND_V_ROTATED) != 0u, K_BYTES = (FLAGS & ATTEND_K_BYTES) != 0u,
           V_BYTES = (FLAGS & ATTEND_V_BYTES) != 0u;
const bool K_MEAN = (FLAGS & ATTEND_K_MEANS) != 0u, K_CHANNEL = (FLAGS & ATTEND_K_PER_CHANNEL) != 0u;
const bool V_NORM = (FLAGS & ATTEND_V_FACTORS) != 0u, BALANCE = (FLAGS & ATTEND_BALANCE) != 0u;
const bool SOFTCAP = (FLAGS & ATTEND_SOFTCAP) != 0u;

layout(push_constant) uniform Push { AttendPush p; };
layout(std430, binding = 0) writeonly restrict buffer Parts { float parts[]; };
layout(std430, binding = 1) readonly restrict buffer Q { uvec4 q[]; };
layout(std430, binding = 2) readonly buffer KCodes { uint k_words[]; };
layout(std430, binding = 3) readonly buffer VCodes { uvec4 v_codes[]; };
layout(std430, binding = 3) readonly buffer VWords { uint v_words[]; };
layout(std430, binding = 6) readonly buffer KParams { uvec4 k_params[]; };
layout(std430, binding = 6) readonly buffer KParamWords { uint k_param_words[]; };
layout(std430, binding = 7) readonly buffer VParamWords { uint v_param_words[]; };
layout(std430, binding = 8) readonly buffer VFactors { uvec4 v_factors[]; };
layout(std430, binding = 9) readonly buffer Balance { uvec4 balance[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const AttendWork FIELD = AttendWork(WORDS_8);
layout(std430, binding = 5) readonly restrict buffer Tables { uint tables[]; };

uint query_base = 0u, row_first = 0u, rows_here = 0u, heads_here = 0u, head = 0u, kv_head = 0u;
uint pages_at = 0u, balance_at = 0u; // words in tables and balance: the item's first page entry, the balancer
uint query_at(uint j) { // query j: row j / HEADS, head j % HEADS
	const uint row = row_first + min(j / HEADS, max(rows_here, 1u) - 1u);
	return query_base + (row * p.n_heads + min(j % HEADS, heads_here - 1u)) * (HEAD_DIM / 4u);
}
#include "lib/attend_matrix.glsl"

vec4 query_fit(vec4 x, uint c) {
	if (!BALANCE) return x;
	const uvec4 w = balance[balance_at / 4u + kv_head * (HEAD_DIM / 8u) + c / 2u];
	return x / (c % 2u == 0u ? halves_low(w) : halves_high(w));
}

uint live_at = 0u, factors_at = 0u; // words in tables of the item and kv head
uint in_page = 0u, k_param = 0u, v_param = 0u, factor = 0u; // of the tile: first token, words of its parameters
uint live = 0u; // bit t: token t of the tile is live
uvec4 k_next[OWN_PIECES], v_next[OWN_VALUES]; // prefetched words of the next tile

// Neighbouring lanes read neighbouring words: keys lie [word][token].
uvec2 key_place(uint i) {
	const uint at = i * LOCAL_X + LANE;
	return uvec2(at % KEYS, min(at / KEYS, PIECES - 1u));
}
void tile_fetch(uint tile) {
	const uint page = tile * KEYS / PAGE, at = pages_at + page * 4u;
	in_page = tile * KEYS % PAGE;
	const uint k_at = KV_AT(2) + tables[at] + kv_k_word(kv_head, 0u, in_page, HEAD_DIM, K_BITS, PAGE);
	const uint v_at = KV_AT(3) + tables[at + 1u] + kv_v_word(kv_head, in_page, 0u, HEAD_DIM, V_BITS, PAGE);
	k_param = KV_AT(6) + tables[at + 2u];
	v_param = KV_AT(7) + tables[at + 3u];
	if (V_NORM) factor = KV_AT(8) + tables[factors_at + page] + kv_factor_word(kv_head, 0u, HEAD_DIM);
	live = tables[live_at + page * 4u + in_page / 32u] >> in_page % 32u;
	[[unroll]] for (uint i = 0; i < OWN_PIECES; i++) {
		const uvec2 k = key_place(i);
		if (K_BITS == 16u) {
			[[unroll]] for (uint n = 0; n < 4u; n++) k_next[i][n] = k_words[k_at + (k.y * 4u + n) * PAGE + k.x];
		} else {
			k_next[i].x = k_words[k_at + piece_word(k.y, K_BITS) * PAGE + k.x];
			if (K_BITS == 8u || K_BITS == 3u) k_next[i].y = k_words[k_at + piece_word2(k.y, K_BITS) * PAGE + k.x];
		}
	}
	[[unroll]] for (uint i = 0; i < OWN_VALUES; i++) {
		const uvec2 v = value_place(i);
		const uint from = v_at + v.x * kv_token_words(HEAD_DIM, V_BITS);
		if (V_BITS == 16u) {
			v_next[i] = v_codes[from / 4u + v.y];
		} else {
			v_next[i].x = v_words[from + piece_word(v.y, V_BITS)];
			if (V_BITS == 8u || V_BITS == 3u) v_next[i].y = v_words[from + piece_word2(v.y, V_BITS)];
		}
	}
}

// Norm of a token of the page, from the words of its parameters.
float norm_of(uint word, uint token, const bool bytes) {
	return bytes ? float(word >> token % 4u * 8u & 255u) : unpackHalf2x16(word)[token % 2u];
}
uvec4 tile_key(uint i) {
	if (K_BITS == 16u) return k_next[i];
	const uint token = in_page + key_place(i).x, c = key_place(i).y;
	vec4 low, high;
	piece_codes(k_next[i].x, k_next[i].y, c, K_BITS, ~0u, low, high);
	if (K_BOOK) {
		float norm =
		    norm_of(k_param_words[k_param + kv_norm_word(kv_head, token, PAGE, K_BYTES ? 8u : 16u)], token, K_BYTES);
		if (K_BYTES)
			norm *=
			    kv_255th(unpackHalf2x16(k_param_words[k_param + kv_norm_scale_word(p.n_kv_heads, kv_head, PAGE)]).x);
		low = book_values(low, K_BITS) * norm;
		high = book_values(high, K_BITS) * norm;
		if (K_MEAN) {
			const uvec4 mean =
			    k_params[(k_param + kv_mean_word(p.n_kv_heads, kv_head, c * 8u, HEAD_DIM, PAGE, K_BYTES ? 8u : 16u)) /
			             4u];
			low += halves_low(mean);
			high += halves_high(mean);
		}
	} else if (K_CHANNEL) {
		const uint at = (k_param + kv_channel_param(kv_head, c * 8u, HEAD_DIM)) / 4u;
		vec4 scale, zero, scale2, zero2;
		if (K_BYTES) {
			const uvec4 w = k_params[(k_param + kv_channel_param(kv_head, c * 8u, HEAD_DIM) / 2u) / 4u];
			const uint largest =
			    k_param_words[k_param + kv_byte_largest_word(kv_channel_param_words(p.n_kv_heads, HEAD_DIM), kv_head)];
			byte_params_of(w.xy, largest, scale, zero);
			byte_params_of(w.zw, largest, scale2, zero2);
		} else {
			params_of(k_params[at], scale, zero);
			params_of(k_params[at + 1u], scale2, zero2);
		}
		low = low * scale + zero;
		high = high * scale2 + zero2;
	} else {
		const vec2 x =
		    unpackHalf2x16(k_param_words[k_param + kv_token_param(kv_head, c * 8u, token, HEAD_DIM, K_GROUP, PAGE)]);
		low = low * x.x + x.y;
		high = high * x.x + x.y;
	}
	return halves8(low, high);
}
// Zeros where there is no live token: its slot may hold anything, and an infinity times weight 0 is NaN.
uvec4 tile_value(uint i) {
	const uvec2 at = value_place(i);
	const uint mask = 0u - (live >> at.x & 1u), token = in_page + at.x, c = at.y;
	if (V_BITS == 16u) return v_next[i] & uvec4(mask);
	vec4 low, high;
	piece_codes(v_next[i].x, v_next[i].y, c, V_BITS, ~0u, low, high);
	if (V_BOOK) {
		float norm =
		    norm_of(v_param_words[v_param + kv_norm_word(kv_head, token, PAGE, V_BYTES ? 8u : 16u)], token, V_BYTES);
		if (V_BYTES)
			norm *=
			    kv_255th(unpackHalf2x16(v_param_words[v_param + kv_norm_scale_word(p.n_kv_heads, kv_head, PAGE)]).x);
		low = book_values(low, V_BITS) * norm;
		high = book_values(high, V_BITS) * norm;
	} else {
		const uint i = kv_token_param(kv_head, c * 8u, token, HEAD_DIM, V_GROUP, PAGE);
		vec2 x;
		if (V_BYTES) {
			const uint largest =
			    kv_byte_largest_word(kv_token_param_words(p.n_kv_heads, HEAD_DIM, V_GROUP, PAGE), kv_head);
			const uint pair = v_param_words[v_param + kv_byte_param_word(i)] >> i % 2u * 16u;
			vec4 scale, zero;
			byte_params_of(uvec2(pair, 0u), v_param_words[v_param + largest], scale, zero);
			x = vec2(scale.x, zero.x);
		} else {
			x = unpackHalf2x16(v_param_words[v_param + i]);
		}
		low = low * x.x + x.y;
		high = high * x.x + x.y;
	}
	if (V_NORM) {
		const uvec4 x = v_factors[factor / 4u + c];
		low *= halves_low(x);
		high *= halves_high(x);
	}
	return halves8(low, high) & uvec4(mask);
}
uint tile_live() { return live; }
uint tile_seen(uint tile, uint live, uint j) { return live; }
#ifdef IN_REGISTERS
bool tile_whole(uint tile, uint live) { return (~live & ~0u >> 32u - KEYS) == 0u; }
#endif

uint part = 0u; // first part of row row_first
uint head_at(uint j) { // where the state of query j begins
	return KV_AT(0) + ((part + j / HEADS * p.part_step) * p.n_heads + head + j % HEADS) * (HEAD_DIM + 2u);
}
bool is_query(uint j) { return j / HEADS < rows_here && j % HEADS < heads_here; }
float query_done(uint j, float top, float total) {
	if (!is_query(j)) return total;
	parts[head_at(j) + HEAD_DIM] = top;
	parts[head_at(j) + HEAD_DIM + 1u] = total;
	return total;
}
void piece_done(uint j, uint c, vec4 sums, float total) {
	if (!is_query(j)) return;
	[[unroll]] for (uint i = 0; i < 4u; i++) parts[head_at(j) + c * 4u + i] = sums[i];
}

void main() {
	const uint in_item = gl_WorkGroupID.x / p.blocks % p.row_blocks * TOKENS; // rows of the work item before this block
	const uint item = KV_AT(4) + (p.first_work + gl_WorkGroupID.x / p.blocks / p.row_blocks) * ATTEND_WORDS;
	const uint row = work[item + FIELD.row], n_pages = work[item + FIELD.n_pages];
	const uint share = p.n_heads / p.n_kv_heads, block_first = gl_WorkGroupID.x % p.blocks * HEADS;
	kv_head = gl_WorkGroupID.y;
	head = kv_head * share + block_first;
	heads_here = min(HEADS, share - block_first);
	part = work[item + FIELD.part] + in_item * p.part_step;
	pages_at = KV_AT(5) + work[item + FIELD.pages];
	live_at = KV_AT(5) + work[item + FIELD.live] + kv_head * work[item + FIELD.live_stride];
	factors_at = KV_AT(5) + work[item + FIELD.factors];
	balance_at = KV_AT(9) + work[item + FIELD.balance];
	row_first = min(row + in_item, p.n_rows - 1u);
	rows_here =
	    min(min(TOKENS, p.item_rows - in_item), p.n_rows - min(row + in_item, p.n_rows)); // 0: past the last row
	query_base = KV_AT(1) / 4u + head * (HEAD_DIM / 4u);
	attend(0u, n_pages * (PAGE / KEYS));
}
