// The elements of each row that are at least as large as the k-th largest of its blocks' maxima. There are at least k
// of them, and the k largest of the row are among them. There are few others, unless large elements share blocks.
//
//   0 list (T, KV_CANDIDATE_WORDS) u32, written | 1 block_max (T, blocks) u32, block_max.comp's | 2 x (T, n) f32
// A list has the number of elements first, then (index, bits) of each, by index. The number is KV_CANDIDATES + 1, and
// the rest is unused, if there are more than KV_CANDIDATES elements, if there are fewer than k blocks, if the row has a
// NaN or +inf, or if the k-th largest maximum is -inf.
// Grid: x = row.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/candidates.h"
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(push_constant) uniform Push { CandidatesPush p; };
layout(std430, binding = 0) writeonly restrict buffer List { uint list[]; };
layout(std430, binding = 1) readonly restrict buffer BlockMax { uint block_max[]; };
layout(std430, binding = 2) readonly restrict buffer X { float x[]; };
#include "lib/float_order.glsl"

shared uint n_blocks_s, n_found_s, bad_s;
shared uint block_s[KV_CANDIDATES];  // blocks with such elements, in no order; each has at least one
shared uvec2 found_s[KV_CANDIDATES]; // such elements, in no order

uint from = 0u;
uint rank(uint i) { return block_max[from + i]; }
#include "lib/kth_largest.glsl"

void main() {
	const uint lane = gl_LocalInvocationIndex, row = gl_WorkGroupID.x;
	const uint to = KV_AT(0) + row * KV_CANDIDATE_WORDS, x_at = KV_AT(2) + row * p.n;
	from = KV_AT(1) + row * p.blocks;
	if (p.k > p.blocks) { // uniform over all lanes
		if (lane == 0u) list[to] = KV_CANDIDATES + 1u;
		return;
	}
	if (lane == 0u) n_blocks_s = n_found_s = bad_s = 0u;
	uint equals; // not needed here
	const uint bound = kth_largest(p.blocks, p.k, equals); // its barriers come before the counts below
	for (uint i = lane; i < p.blocks; i += LOCAL_X) {
		const uint most = rank(i);
		if (most == ~0u) bad_s = 1u;
		if (most < bound) continue;
		const uint at = atomicAdd(n_blocks_s, 1u);
		if (at < KV_CANDIDATES) block_s[at] = i;
	}
	barrier();
	const uint n_blocks = n_blocks_s;
	if (bad_s == 0u && bound > LEAST_FLOAT && n_blocks <= KV_CANDIDATES) // uniform over all lanes
		for (uint i = lane; i < n_blocks * KV_LOGIT_BLOCK; i += LOCAL_X) {
			const uint at = block_s[i / KV_LOGIT_BLOCK] * KV_LOGIT_BLOCK + i % KV_LOGIT_BLOCK;
			const float value = x[x_at + min(at, p.n - 1u)];
			if (at >= p.n || float_order(value) < bound) continue;
			const uint place = atomicAdd(n_found_s, 1u);
			if (place < KV_CANDIDATES) found_s[place] = uvec2(at, floatBitsToUint(value));
		}
	barrier();
	const uint n = n_found_s;
	const bool whole = n > 0u && n <= KV_CANDIDATES;
	if (lane == 0u) list[to] = whole ? n : KV_CANDIDATES + 1u;
	if (!whole) return;
	for (uint i = lane; i < n; i += LOCAL_X) { // an element's place in the list: how many have a smaller index
		uint before = 0u;
		for (uint j = 0u; j < n; j++) before += uint(found_s[j].x < found_s[i].x);
		list[to + 1u + 2u * before] = found_s[i].x;
		list[to + 2u + 2u * before] = found_s[i].y;
	}
}
