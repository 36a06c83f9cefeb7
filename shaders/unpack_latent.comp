// Latents and rotated keys of live tokens in pages, as rows of f16: the inverse of packing them. Rotated latents are
// turned back.
//
//   binding  name      shape
//   0        k         (rows, HEAD_DIM / 2) u32 words, pairs of f16, written
//   1        v         (rows, ROPE_DIM / 2) u32 words, pairs of f16, written
//   2 .. 7             k_codes, v_codes, work, tables, k_params, v_params, as in attend_latent.comp. AttendWork::row is
//                      the row of the item's first live token; its others follow in the order of pages and slots.
// FLAGS: ATTEND_K_*.
//
// A workgroup decodes TILE tokens at a time into shared memory. Grid: x = work item.
// Needs: PAGE a multiple of TILE; runs of whole pieces of 4 channels; TILE at most 32.
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
layout(constant_id = SPEC_TILE) const uint TILE = 4;
const bool BOOK = (FLAGS & ATTEND_K_CODEBOOK) != 0u, MEAN = (FLAGS & ATTEND_K_MEANS) != 0u,
           ROTATE = (FLAGS & ATTEND_K_ROTATED) != 0u, BYTES = (FLAGS & ATTEND_K_BYTES) != 0u,
           CHANNEL = (FLAGS & ATTEND_K_PER_CHANNEL) != 0u;

layout(push_constant) uniform Push { UnpackPush p; };
layout(std430, binding = 0) writeonly restrict buffer K { uint k[]; };
layout(std430, binding = 1) writeonly restrict buffer V { uint v[]; };
layout(std430, binding = 2) readonly buffer KCodes { uint k_codes[]; };
layout(std430, binding = 3) readonly buffer VCodes { uint v_codes[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
layout(std430, binding = 5) readonly restrict buffer Tables { uint tables[]; };
layout(std430, binding = 6) readonly buffer KParams { uint k_params[]; };
layout(std430, binding = 7) readonly buffer VParams { uint v_params[]; };
#include "lib/latent_pages.glsl"
const AttendWork FIELD = AttendWork(WORDS_8);

#define LANE gl_LocalInvocationID.x
const uint PIECES = HEAD_DIM / 4u, ROPE_PIECES = ROPE_DIM / 4u; // of 4 channels
shared vec4 rotated_s[ROTATE ? TILE * PIECES : 1u];
#define STAGED_PIECES (TILE * PIECES)
#define STAGED(i) rotated_s[i]
#define STAGED_SET(i, x) rotated_s[i] = x
#include "lib/rotate.glsl"

void main() {
	const uint item = KV_AT(4) + (p.first_work + gl_WorkGroupID.x) * ATTEND_WORDS;
	const uint n_pages = work[item + FIELD.n_pages];
	const uint live_at = KV_AT(5) + work[item + FIELD.live], pages_at = KV_AT(5) + work[item + FIELD.pages];
	uint row = p.first_row + work[item + FIELD.row]; // of the tile's first live token
	for (uint first = 0; first < n_pages * PAGE; first += TILE) {
		go_to(first, live_at, pages_at);
		const uint here = bitfieldExtract(live, 0, int(TILE));
		if (here == 0u) continue; // uniform
		if (ROTATE) {
			barrier(); // all lanes are done with the tile before
			for (uint i = LANE; i < TILE * PIECES; i += LOCAL_X) {
				const uint t = i % TILE, c = i / TILE; // neighbouring lanes load neighbouring tokens
				rotated_s[t * PIECES + c] = (here >> t & 1u) == 0u ? vec4(0) : latent_values(in_page + t, c);
			}
			barrier();
			rotate_staged(STAGED_PIECES, true);
		}
		for (uint i = LANE; i < TILE * (PIECES + ROPE_PIECES); i += LOCAL_X) {
			const uint t = i % TILE, c = i / TILE;
			if ((here >> t & 1u) == 0u) continue; // its memory may hold anything
			const uint to = row + bitCount(bitfieldExtract(here, 0, int(t)));
			uvec2 x;
			if (c < PIECES) {
				if (ROTATE) x = finite_halves4(rotated_s[t * PIECES + c]);
				else x = latent_halves(in_page + t, c);
				const uint at = KV_AT(0) + to * (HEAD_DIM / 2u) + 2u * c;
				k[at] = x.x;
				k[at + 1u] = x.y;
			} else {
				x = rope_halves(in_page + t, c - PIECES);
				const uint at = KV_AT(1) + to * (ROPE_DIM / 2u) + 2u * (c - PIECES);
				v[at] = x.x;
				v[at + 1u] = x.y;
			}
		}
		row += bitCount(here);
	}
}
