// The queries of a workgroup, scores of quads of keys, and reductions: shared by texel/attend.glsl and
// texel/weigh.comp.
//
// The workgroup is one subgroup. Large buffers are read as texels, because these drivers load storage buffers an order
// of magnitude slower. Queries pass between lanes by shuffles.
//
// The including file defines LOCAL_X, HEAD_DIM, QUERIES, declares q, and supplies:
//   uint query_at(uint j)           first 16-byte piece of query j in q; any valid one where there is no query j
//   void queries_fit(uint c)        makes q_part, channels 4 c .. 4 c + 3 of queries, what the keys want;
//                                   c differs from lane to lane
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#define LOAD4(name, i) texelFetch(name, int(i))
#define LOAD_WORD(name, i) word_of(LOAD4(name, (i) / 4u), i)
#define LANE gl_SubgroupInvocationID
#include "texel/codes.glsl"
#include "lib/halves.glsl"
#include "lib/book.glsl"

uint word_of(uvec4 x, uint i) {
	const uvec2 pair = (i & 2u) == 0u ? x.xy : x.zw;
	return (i & 1u) == 0u ? pair.x : pair.y;
}

const uint QUADS = LOCAL_X;         // quads (4 consecutive tokens) in a tile, one per lane
const uint Q_PIECES = HEAD_DIM / 4u; // 16-byte pieces of a query

vec4 score[QUERIES]; // of the lane's quad
const uint Q_FETCH = (QUERIES * 2u + LOCAL_X - 1u) / LOCAL_X; // fetches that bring 8 channels of all queries
vec4 q_part[Q_FETCH]; // lane 2 j + i of fetch f: channels 4 i .. 4 i + 3 of query f * LOCAL_X / 2 + j

// ---- queries

// Brings channels 8 step .. 8 step + 7 of every query.
void queries_step(uint step) {
#ifdef QUERY_PAGES
	if (OWN_QUERY) return;
#endif
	const uint c = step * 2u + LANE % 2u;
	[[unroll]] for (uint f = 0; f < Q_FETCH; f++)
		q_part[f] = uintBitsToFloat(LOAD4(q, query_at(f * (LOCAL_X / 2u) + LANE / 2u) + c));
	queries_fit(c);
}
#ifdef QUERY_PAGES
// Where keys are rotated or have means, lane j holds query j.
vec4 own_query[Q_PIECES];
vec4 query_from_lane(uint j, uint piece) {
	const vec4 x = own_query[piece];
	return vec4(subgroupShuffle(x.x, j), subgroupShuffle(x.y, j), subgroupShuffle(x.z, j), subgroupShuffle(x.w, j));
}
void own_query_rotate() {
	const uint block = kv_rotation_block(HEAD_DIM);
	[[unroll]] for (uint i = 0; i < Q_PIECES; i++)
		own_query[i] = hadamard4(signed4(own_query[i] * kv_rotation_scale(block), i * 4u));
	[[unroll]] for (uint bit = 0; bit < 7u; bit++)
		if (1u << bit < block / 4u)
			[[unroll]] for (uint i = 0; i < Q_PIECES / 2u; i++) {
				const uint step = 1u << bit, at = min(i / step * 2u * step + i % step, Q_PIECES - 1u - step);
				const vec4 a = own_query[at], b = own_query[at + step];
				own_query[at] = a + b;
				own_query[at + step] = a - b;
			}
}
#endif
vec4 query(uint j, uint step, uint i) {
#ifdef QUERY_PAGES
	if (OWN_QUERY) return query_from_lane(j, step * 2u + i);
#endif
	const uint f = j * 2u / LOCAL_X, from = j * 2u % LOCAL_X + i;
	return vec4(subgroupShuffle(q_part[f].x, from), subgroupShuffle(q_part[f].y, from),
	            subgroupShuffle(q_part[f].z, from), subgroupShuffle(q_part[f].w, from));
}
// The sum over a query's channels of x[fetch], a number per lane for the lane's share of q_part.
float query_sum(float x[Q_FETCH], uint j) {
	const uint f = j * 2u / LOCAL_X, from = j * 2u % LOCAL_X;
	return subgroupShuffle(x[f], from) + subgroupShuffle(x[f], from + 1u);
}

// score += q . k over 4 channels; k[c] holds channel 8 step + 4 i + c of the quad's 4 tokens. After queries_step(step).
void score_half(uint step, uint i, vec4 k[4]) {
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		const vec4 q4 = query(j, step, i);
		score[j] += q4.x * k[0] + q4.y * k[1] + q4.z * k[2] + q4.w * k[3];
	}
}

// ---- reductions over the workgroup

void reduce(inout float x[QUERIES], const bool maximum) {
	[[unroll]] for (uint j = 0; j < QUERIES; j++)
		[[unroll]] for (uint b = 0; b < 6u; b++)
			if (1u << b < LOCAL_X) {
				const float other = subgroupShuffleXor(x[j], 1u << b);
				x[j] = maximum ? max(x[j], other) : x[j] + other;
			}
}
