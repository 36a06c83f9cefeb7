// Live bits of pages for rows: those of the pages without tokens whose bit of the row is 0.
//
//   0 tables u32 words: live bits and positions are read, live bits for rows are written | 1 bits (T, n_words) u32
//   2 work (n, 8) u32, LiveWork
// Grid: x = work item, y = workgroups that share its words, an invocation each.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { IndexLivePush p; };
layout(std430, binding = 0) restrict buffer Tables { uint tables[]; }; // what an item writes no item reads
layout(std430, binding = 1) readonly restrict buffer Bits { uint bits[]; };
layout(std430, binding = 2) readonly restrict buffer WorkTable { uint work[]; };
const LiveWork FIELD = LiveWork(WORDS_8);
const uint AHEAD = 8; // loads in flight

uint from = 0;
// Word i of the row's bits; those past the end are 0.
uint row_word(uint i) {
	const uint word = bits[from + min(i, p.n_words - 1)];
	return i < p.n_words ? word : 0u;
}

void main() {
	const uint item = KV_AT(2) + gl_WorkGroupID.x * LIVE_WORDS, page = work[item + FIELD.page];
	const uint n = work[item + FIELD.n_pages] * 4, live_at = KV_AT(0) + work[item + FIELD.live];
	const uint to = KV_AT(0) + work[item + FIELD.to], position = work[item + FIELD.position];
	const uint first = work[item + FIELD.first];
	from = KV_AT(1) + work[item + FIELD.row] * p.n_words;
	for (uint i = gl_GlobalInvocationID.y * gl_WorkGroupSize.x + gl_LocalInvocationIndex; i < n;
	     i += gl_NumWorkGroups.y * gl_WorkGroupSize.x) {
		const uint in_page = i / 4, token = i % 4 * 32;
		uint kept = token < page ? tables[live_at + i] : 0u;
		if (position == LIVE_IN_ORDER) {
			kept &= row_word((first + in_page * page + token) / 32);
		} else if (kept != 0) {
			const uint at = KV_AT(0) + position + in_page * LIVE_POSITIONS + token;
			for (uint t = 0; t < 32; t += AHEAD) {
				uint x[AHEAD];
				[[unroll]] for (uint j = 0; j < AHEAD; j++) x[j] = tables[at + t + j];
				[[unroll]] for (uint j = 0; j < AHEAD; j++)
					kept &= ~((~(row_word(x[j] / 32) >> x[j] % 32) & 1u) << t + j);
			}
		}
		tables[to + i] = kept;
	}
}
