// Latent attention over cached pages: the partial softmax states of some rows over a run of pages, as attend.comp has
// them; attend_merge.comp turns the states of a row into its output. The arithmetic is in lib/latent.glsl.
//
//   binding  name      shape
//   0        parts     (n_parts, n_heads, HEAD_DIM + 2) f32, written
//   1        q         (T, n_heads, HEAD_DIM) f32
//   2        k_codes   pool words, latents: [word][token] in a page
//   3        v_codes   pool words, rotated keys: [token][word] in a page
//   4        work      (n_work, 8) u32, AttendWork
//   5        tables    u32 words: page entries, live bits
//   6        k_params  pool words, of any kind that keys have but balancers
//   7        v_params  pool words: (scale, zero) per token and run of V_GROUP channels
//   8        q_rope    (T, n_heads, ROPE_DIM) f32
// FLAGS: ATTEND_*.
//
// GATHER builds attend_latent_gather, whose tiles consist of live tokens (lib/live_tokens.glsl): a lane loads from one
// token of each tile, so it needs the address of that one alone.
//
// WEIGH builds weigh_latent, which writes what the tokens receive from one row, as weigh.comp does: binding 0 is weight
// (f32 words), binding 4 has WeighWork, binding 9 is lse (T, n_heads) f32. Grid: x = work item; blocks of HEADS query
// heads follow each other. Needs codes with scale and zero point.
//
// Grid: x = (work item * row_blocks + block of TOKENS rows) * blocks + block of up to HEADS query heads. A row's bits
// do not depend on the other rows of its block.
// Needs: what lib/latent.glsl does; PAGE a multiple of TILE; runs of whole pieces of 4 channels.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/spec.h"
#include "lib/work.glsl"
#include "shared/push.h"
#include "shared/kv_page.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 512;
layout(constant_id = SPEC_ROPE_DIM) const uint ROPE_DIM = 64;
layout(constant_id = SPEC_K_BITS) const uint K_BITS = 16;
layout(constant_id = SPEC_V_BITS) const uint V_BITS = 16;
layout(constant_id = SPEC_K_GROUP) const uint K_GROUP = 32;
layout(constant_id = SPEC_V_GROUP) const uint V_GROUP = 64;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 8;
layout(constant_id = SPEC_COLS) const uint TOKENS = 1;
layout(constant_id = SPEC_TILE) const uint TILE = 8;
const uint QUERIES = HEADS * TOKENS; // query j: row j / HEADS, head j % HEADS
const bool BOOK = (FLAGS & ATTEND_K_CODEBOOK) != 0u, MEAN = (FLAGS & ATTEND_K_MEANS) != 0u,
           ROTATE = (FLAGS & ATTEND_K_ROTATED) != 0u, BYTES = (FLAGS & ATTEND_K_BYTES) != 0u,
           CHANNEL = (FLAGS & ATTEND_K_PER_CHANNEL) != 0u, SOFTCAP = (FLAGS & ATTEND_SOFTCAP) != 0u;

#ifdef WEIGH
layout(push_constant) uniform Push { WeighPush p; };
layout(std430, binding = 0) restrict buffer Weight { float weight[]; };
layout(std430, binding = 9) readonly restrict buffer Lse { float lse[]; };
const WeighWork FIELD = WeighWork(WORDS_8);
#else
layout(push_constant) uniform Push { AttendPush p; };
layout(std430, binding = 0) writeonly restrict buffer Parts { vec2 parts[]; };
const AttendWork FIELD = AttendWork(WORDS_8);
#endif
layout(std430, binding = 1) readonly restrict buffer Q { vec4 q[]; };
layout(std430, binding = 2) readonly buffer KCodes { uint k_codes[]; };
layout(std430, binding = 3) readonly buffer VCodes { uint v_codes[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
layout(std430, binding = 5) readonly restrict buffer Tables { uint tables[]; };
layout(std430, binding = 6) readonly buffer KParams { uint k_params[]; };
layout(std430, binding = 7) readonly buffer VParams { uint v_params[]; };
layout(std430, binding = 8) readonly restrict buffer QRope { vec4 q_rope[]; };
#define Q_ROPE_BINDING 8

uint row_first = 0, rows_here = 0, head_first = 0, heads_here = 0;
#include "lib/latent_pages.glsl"

uint query_row(uint j) {
	return (row_first + min(j / HEADS, max(rows_here, 1u) - 1u)) * p.n_heads + head_first +
	       min(j % HEADS, heads_here - 1u);
}
#ifdef GATHER
#include "lib/live_tokens.glsl"
uint n_live = 0, gathered = 0; // live tokens of the window, and how many of them are before the tile
bool is_live(uint t) { return gathered + t < n_live; }
uint place(uint in_tile) { return in_page; } // of the lane's own token, to which in_page and the addresses belong
#else
bool is_live(uint t) { return (live >> t & 1u) != 0u; }
uint place(uint in_tile) { return in_page + in_tile; }
#endif
bool sees(uint j, uint t) { return is_live(t); }

#include "lib/latent.glsl"

uvec2 tile_piece(uint in_tile, uint c) {
	const uint t = place(in_tile);
	if (!is_live(in_tile)) return uvec2(0); // its memory may hold anything
	if (c < PIECES) return latent_halves(t, c);
	return rope_halves(t, c - PIECES);
}

// The tile that begins with token `first` of the item's pages. With GATHER `first` is the lane's own token.
void next_tile(uint first, uint live_at, uint pages_at) {
	go_to(first, live_at, pages_at);
	tile_load(true);
}

#ifdef WEIGH
void main() {
	const uint item = KV_AT(4) + (p.first_work + gl_WorkGroupID.x) * WEIGH_WORDS;
	const uint n_pages = work[item + FIELD.n_pages], to = KV_AT(0) + work[item + FIELD.weight];
	const uint live_at = KV_AT(5) + work[item + FIELD.live], pages_at = KV_AT(5) + work[item + FIELD.pages];
	row_first = work[item + FIELD.row];
	rows_here = 1;
	for (head_first = 0; head_first < p.n_heads; head_first += HEADS) {
		heads_here = min(HEADS, p.n_heads - head_first);
		state_begin();
		for (uint first = 0; first < n_pages * PAGE; first += TILE) {
			next_tile(first, live_at, pages_at);
			tile_scores();
			if (LANE >= TILE) continue;
			float sum = 0;
			[[unroll]] for (uint j = 0; j < HEADS; j++)
				if (j < heads_here)
					sum += exp(weight_s[j * TILE + LANE] - lse[KV_AT(9) + row_first * p.n_heads + head_first + j]);
			sum = sum / float(p.n_heads) + (head_first == 0u ? 0.0 : weight[to + first + LANE]);
			weight[to + first + LANE] = (live >> LANE & 1u) == 0u ? -1.0 : sum;
		}
	}
}
#else
void main() {
	const uint row_block = gl_WorkGroupID.x / p.blocks % p.row_blocks, in_item = row_block * TOKENS;
	const uint item = KV_AT(4) + (p.first_work + gl_WorkGroupID.x / p.blocks / p.row_blocks) * ATTEND_WORDS;
	const uint row = work[item + FIELD.row], part = work[item + FIELD.part], n_pages = work[item + FIELD.n_pages];
	const uint live_at = KV_AT(5) + work[item + FIELD.live], pages_at = KV_AT(5) + work[item + FIELD.pages];
	row_first = min(row + in_item, p.n_rows - 1u);
	rows_here = min(min(TOKENS, p.item_rows - in_item), p.n_rows - min(row + in_item, p.n_rows)); // 0: behind the last
	head_first = gl_WorkGroupID.x % p.blocks * HEADS;
	heads_here = min(HEADS, p.n_heads - head_first);
	state_begin();
	if (ROTATE) rotate_staged(STAGED_PIECES, false);
#ifdef GATHER
	for (uint window = 0; window < n_pages * PAGE; window += WINDOW_TOKENS) {
		n_live = live_tokens(window, live_at, n_pages * PAGE);
		for (gathered = 0; gathered < n_live; gathered += TILE) {
			next_tile(window + live_token(min(gathered + LANE % TILE, n_live - 1u)), live_at, pages_at);
			tile_attend();
		}
	}
#else
	for (uint first = 0; first < n_pages * PAGE; first += TILE) {
		next_tile(first, live_at, pages_at);
		tile_attend();
	}
#endif
	state_finish(ROTATE);
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		if (j / HEADS >= rows_here || j % HEADS >= heads_here) continue;
		const uint head = head_first + j % HEADS;
		const uint to =
		    KV_AT(0) / 2u + ((part + (in_item + j / HEADS) * p.part_step) * p.n_heads + head) * (HEAD_DIM / 2u + 1u);
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = LANE + o * LOCAL_X;
			if (c >= PIECES) continue;
			parts[to + 2u * c] = acc[j * OWN + o].xy;
			parts[to + 2u * c + 1u] = acc[j * OWN + o].zw;
		}
		if (LANE == 0) parts[to + HEAD_DIM / 2u] = vec2(shrink_s[j], total_s[j]);
	}
}
#endif
