// Entries of blocks of tokens: sums over a block's rows, with shares that are a softmax of gates and places. See
// op::PoolBlocks in backends/op_state.h, which also says what a state is.
//
// dims     out (rows, dim) f32; x, gates (rows, width) f32, width: dim, with POOL_OVERLAP twice that; places (block,
//          width) f32; work (items) StateWork; from, to f32 words
// grid     x: channels, y: items. An invocation takes one channel through all rows of an item, so sums do not depend on
//          how rows are cut
// FLAGS    POOL_*
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/work.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { PoolBlocksPush p; };
layout(std430, binding = 0) writeonly buffer Out { float out_x[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(std430, binding = 2) readonly buffer Gates { float gates[]; };
layout(std430, binding = 3) readonly buffer Places { float places[]; };
layout(std430, binding = 4) readonly buffer Work { uint work[]; };
layout(std430, binding = 5) readonly buffer From { float from[]; };
layout(std430, binding = 6) writeonly buffer To { float to[]; }; // may be the same memory as From
const bool OVERLAP = (FLAGS & POOL_OVERLAP) != 0;
const vec3 NONE = vec3(0.0);

// Sums of rows: the largest gate, the sum of shares, that of x; a sum of 0: of none.
vec3 pool_with(vec3 pool, float gate, float value) {
	if (pool.y == 0.0) return vec3(gate, 1.0, value);
	const float now = max(pool.x, gate), keep = exp(pool.x - now), share = exp(gate - now);
	return vec3(now, pool.y * keep + share, pool.z * keep + share * value);
}
float mean_of(vec3 before, vec3 own) {
	if (before.y == 0.0) return own.z / own.y;
	const float most = max(before.x, own.x), a = exp(before.x - most), b = exp(own.x - most);
	return (before.z * a + own.z * b) / (before.y * a + own.y * b);
}

uint from_at = 0, to_at = 0;
float state(uint word) {
	return from_at == STATE_ZERO ? 0.0 : from[KV_AT(5) + from_at + word * p.dim + gl_GlobalInvocationID.x];
}
vec3 pool_of(uint i) { return vec3(state(1u + 3u * i), state(2u + 3u * i), state(3u + 3u * i)); }
void put(uint word, float value) { to[KV_AT(6) + to_at + word * p.dim + gl_GlobalInvocationID.x] = value; }

void main() {
	const uint c = gl_GlobalInvocationID.x;
	if (c >= p.dim) return;
	const uint item = KV_AT(4) + gl_WorkGroupID.y * STATE_WORDS, row = work[item], n = work[item + 1];
	from_at = work[item + 2], to_at = work[item + 3];
	const uint width = OVERLAP ? 2u * p.dim : p.dim, second = width - p.dim;
	uint place = uint(state(0u));
	vec3 own = pool_of(0u), before = NONE, next = NONE; // next: of the first set of channels
	if (OVERLAP) before = pool_of(1u), next = pool_of(2u);
	for (uint t = row; t < row + n; t++) {
		const uint at = t * width + c, of = place * width + c;
		own = pool_with(own, gates[KV_AT(2) + at + second] + places[KV_AT(3) + of + second],
		                x[KV_AT(1) + at + second]);
		if (OVERLAP) next = pool_with(next, gates[KV_AT(2) + at] + places[KV_AT(3) + of], x[KV_AT(1) + at]);
		out_x[KV_AT(0) + t * p.dim + c] = mean_of(before, own);
		place++;
		if (place == p.block) {
			place = 0u, own = NONE;
			if (OVERLAP) before = next, next = NONE;
		}
	}
	put(0u, float(place));
	for (uint i = 0u; i < 3u; i++) {
		put(1u + i, own[i]);
		if (OVERLAP) put(4u + i, before[i]), put(7u + i, next[i]);
	}
}
