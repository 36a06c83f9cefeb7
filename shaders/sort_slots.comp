// The slots of a prompt by expert, in tiles of shared/experts.h: a counting sort by one workgroup.
//
// 0 tiles (n_tiles, KV_TILE_WORDS) u32, written | 1 ids (n_slots) u32
// A lane counts the slots of one expert at a time. All lanes go over the same slots, which pass through shared memory.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/experts.h"
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { SortSlotsPush p; };

layout(binding = 0) restrict writeonly buffer Tiles { uint tiles[]; };
layout(binding = 1) restrict readonly buffer Ids { uint ids[]; };

shared uint count_s[KV_MOST_EXPERTS];
shared uvec4 ids_s[LOCAL_X];

// Loads the ids of slots first .. first + 4 * LOCAL_X - 1 into shared memory.
void load_ids(uint first) {
	barrier(); // the previous ids have been read
	for (uint i = 0u; i < 4u; ++i) {
		const uint slot = first + gl_LocalInvocationIndex * 4u + i;
		ids_s[gl_LocalInvocationIndex][i] = slot < p.n_slots ? ids[KV_AT(1) + slot] : KV_NO_SLOT;
	}
	barrier();
}

// Number of tiles of experts 0 .. n - 1.
uint tiles_before(uint n) {
	uint sum = 0u;
	for (uint i = 0u; i < n; ++i) sum += (count_s[i] + KV_EXPERT_TILE - 1u) / KV_EXPERT_TILE;
	return sum;
}

void main() {
	const uint lane = gl_LocalInvocationIndex, STEP = 4u * LOCAL_X;
	for (uint e = lane; e - lane < p.n_experts; e += LOCAL_X) {
		uvec4 n = uvec4(0u);
		for (uint first = 0u; first < p.n_slots; first += STEP) {
			load_ids(first);
			for (uint q = 0u; q < LOCAL_X; ++q) n += uvec4(equal(ids_s[q], uvec4(e)));
		}
		if (e < p.n_experts) count_s[e] = n.x + n.y + n.z + n.w;
	}
	barrier();
	for (uint e = lane; e - lane < p.n_experts; e += LOCAL_X) {
		uint tile = tiles_before(min(e, p.n_experts)), n = 0u;
		for (uint first = 0u; first < p.n_slots; first += STEP) {
			load_ids(first);
			for (uint q = 0u; q < STEP; ++q) {
				if (ids_s[q / 4u][q % 4u] != e) continue;
				const uint at = KV_AT(0) + (tile + n / KV_EXPERT_TILE) * KV_TILE_WORDS;
				if (n % KV_EXPERT_TILE == 0u) tiles[at] = e;
				tiles[at + 1u + n % KV_EXPERT_TILE] = first + q;
				++n;
			}
		}
		for (; n % KV_EXPERT_TILE != 0u; ++n) // pads the last tile
			tiles[KV_AT(0) + (tile + n / KV_EXPERT_TILE) * KV_TILE_WORDS + 1u + n % KV_EXPERT_TILE] = KV_NO_SLOT;
	}
	const uint end = p.n_tiles * KV_TILE_WORDS;
	for (uint i = tiles_before(p.n_experts) * KV_TILE_WORDS + lane; i < end; i += LOCAL_X)
		tiles[KV_AT(0) + i] = KV_NO_SLOT;
}
