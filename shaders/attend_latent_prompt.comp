// Latent attention of a prompt: rows over the latents and rotated keys of their own prompt, causal. As
// attend_prompt.comp, whose FLAGS and results it has; the arithmetic is in lib/latent.glsl.
//
//   binding  name      shape
//   0        result    out (T, n_heads, HEAD_DIM) f32, or parts (n_parts, n_heads, HEAD_DIM + 2) f32; written
//   1        q         (T, n_heads, HEAD_DIM) f32
//   2        latents   (t_cap, HEAD_DIM) f16
//   3        keys      (t_cap, ROPE_DIM) f16
//   4        row_parts (T, 2) u32: first part, parts of a row; unused without PROMPT_STATE
//   5        lse       (T, n_heads) f32, written; unused without PROMPT_LSE
//   6        q_rope    (T, n_heads, ROPE_DIM) f32
//   7        seen      (T * p.seen_sets, p.seen_words) u32, bits; unused without PROMPT_SEEN
//   8        sinks     (n_heads) f32; unused without PROMPT_SINKS
//
// Grid: x = block of TOKENS rows, y = block of up to HEADS query heads. Tiles of tokens start at multiples of TILE from
// token 0, and a tile of which a row sees nothing changes nothing of it, so a row's bits do not depend on how the
// prompt is cut.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/spec.h"
#include "shared/push.h"
#include "shared/kv_page.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 512;
layout(constant_id = SPEC_ROPE_DIM) const uint ROPE_DIM = 64;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_HEADS) const uint HEADS = 8;
layout(constant_id = SPEC_COLS) const uint TOKENS = 1;
layout(constant_id = SPEC_TILE) const uint TILE = 8;
const uint QUERIES = HEADS * TOKENS; // query j: row j / HEADS, head j % HEADS
const bool SOFTCAP = (FLAGS & PROMPT_SOFTCAP) != 0u, PARTIAL = (FLAGS & PROMPT_STATE) != 0u,
           SEEN = (FLAGS & PROMPT_SEEN) != 0u, SINKS = (FLAGS & PROMPT_SINKS) != 0u,
           WINDOW = (FLAGS & PROMPT_WINDOW) != 0u;

layout(push_constant) uniform Push { AttendPromptPush p; };
layout(std430, binding = 0) writeonly restrict buffer Result { vec2 result[]; };
layout(std430, binding = 1) readonly restrict buffer Q { vec4 q[]; };
layout(std430, binding = 2) readonly restrict buffer Latents { uvec2 latents[]; };
layout(std430, binding = 3) readonly restrict buffer Keys { uvec2 keys[]; };
layout(std430, binding = 4) readonly restrict buffer RowParts { uint row_parts[]; };
layout(std430, binding = 5) writeonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 6) readonly restrict buffer QRope { vec4 q_rope[]; };
#define Q_ROPE_BINDING 6
layout(std430, binding = 7) readonly restrict buffer Seen { uint seen[]; };
#define SEEN_AT 7
layout(std430, binding = 8) readonly restrict buffer Sinks { float sinks[]; };
#include "lib/seen.glsl"

uint row_first = 0, head_first = 0, heads_here = 0, first = 0, n_tokens = 0;
uint query_row(uint j) {
	return min(row_first + j / HEADS, p.n_rows - 1u) * p.n_heads + head_first + min(j % HEADS, heads_here - 1u);
}
uint row_bits(uint i) { return seen_bits(min(row_first + i, p.n_rows - 1u), 0u, first); } // of the tile, of row i
bool sees(uint j, uint t) {
	if (SEEN && (row_bits(j / HEADS) >> t & 1u) == 0u) return false;
	const uint own = p.first + row_first + j / HEADS;
	if (WINDOW && first + t + p.window <= own) return false;
	return first + t <= own && first + t < n_tokens;
}
// Goes to the next tile, from `first` on, of which a row of the block sees a token. Not a branch around a tile's work:
// lavapipe of Mesa 26.1 has wrong results behind barriers in one, if a workgroup has several subgroups.
void go_to_seen() {
	uint any = 0u;
	while (SEEN && any == 0u && first < n_tokens) {
		[[unroll]] for (uint i = 0; i < TOKENS; i++) any |= row_bits(i);
		any &= (2u << TILE - 1u) - 1u;
		first += any == 0u ? TILE : 0u;
	}
}

#include "lib/latent.glsl"

uvec2 tile_piece(uint t, uint c) {
	if (first + t >= n_tokens) return uvec2(0);
	if (c < PIECES) return latents[KV_AT(2) / 2u + (first + t) * PIECES + c];
	return keys[KV_AT(3) / 2u + (first + t) * (ROPE_DIM / 4u) + c - PIECES];
}

void main() {
	head_first = gl_WorkGroupID.y * HEADS;
	heads_here = min(HEADS, p.n_heads - head_first);
	row_first = gl_WorkGroupID.x * TOKENS;
	n_tokens = p.first + min(row_first + TOKENS, p.n_rows); // that the last row of the block sees
	const uint oldest = p.first + row_first + 1u; // of the first row's window, if it is full
	if (WINDOW && oldest > p.window) first = (oldest - p.window) / TILE * TILE;
	state_begin();
	for (go_to_seen(); first < n_tokens; first += TILE, go_to_seen()) {
		tile_load(false);
		tile_attend();
	}
	state_finish(false);
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		const uint row = row_first + j / HEADS, head = head_first + j % HEADS;
		if (row >= p.n_rows || j % HEADS >= heads_here) continue;
		uint to = row;
		if (PARTIAL) to = row_parts[KV_AT(4) + row * 2u] + row_parts[KV_AT(4) + row * 2u + 1u] - 1u;
		const uint at = KV_AT(0) / 2u + (to * p.n_heads + head) * (HEAD_DIM / 2u + (PARTIAL ? 1u : 0u));
		const float sink = SINKS ? sinks[KV_AT(8) + head] : shrink_s[j];
		const float most = SINKS ? max(shrink_s[j], sink) : shrink_s[j];
		const float shrink = SINKS ? exp(shrink_s[j] - most) : 1.0; // factor for what has been summed
		const float all = SINKS ? total_s[j] * shrink + exp(sink - most) : total_s[j];
		const bool none = SEEN && all == 0.0;
		const float factor = PARTIAL ? 1.0 : none ? 0.0 : shrink / all;
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = LANE + o * LOCAL_X;
			if (c >= PIECES) continue;
			result[at + 2u * c] = acc[j * OWN + o].xy * factor;
			result[at + 2u * c + 1u] = acc[j * OWN + o].zw * factor;
		}
		if (LANE != 0) continue;
		if ((FLAGS & PROMPT_LSE) != 0u)
			lse[KV_AT(5) + row * p.n_heads + head] = none ? uintBitsToFloat(MINUS_INF) : most + log(all);
		if (PARTIAL) result[at + HEAD_DIM / 2u] = vec2(shrink_s[j], total_s[j]);
	}
}
