// The queries of a workgroup, scores of quads of keys, and reductions: shared by lib/attend.glsl and weigh.comp.
//
// QUAD_LANES lanes share a quad, 4 consecutive tokens. With 2, a lane multiplies its half of the channels by all
// queries, and join() gives it the complete scores of every other query. Shared memory then serves twice as many lanes,
// where it limits how many a processor holds.
//
// The including file defines LOCAL_X, QUAD_LANES, SUBGROUP, HEAD_DIM, QUERIES, declares q, and supplies:
//   uint query_at(uint j)           first 16-byte piece of query j in q; any valid one where there is no query j
//   vec4 query_fit(vec4 x, uint c)  x, channels 4 c .. 4 c + 3 of a query, as the keys want them
#extension GL_EXT_control_flow_attributes : require
#ifndef NO_SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

#define LANE gl_LocalInvocationID.x
#include "lib/codes.glsl"
#include "lib/halves.glsl"
#include "lib/book.glsl"

const uint QUADS = LOCAL_X / QUAD_LANES; // of a tile
#define QUAD (LANE / QUAD_LANES)
#define HALF (LANE % QUAD_LANES)         // the lane's half of the channels, and its queries
const uint OWN_QUERIES = QUERIES / QUAD_LANES;
uint own_query(uint m) { return m * QUAD_LANES + HALF; }
const uint Q_PIECES = HEAD_DIM / 4u; // 16-byte pieces of a query

vec4 score[QUERIES]; // of the lane's quad; after join(), OWN_QUERIES of them: of query own_query(m)
shared vec4 q_s[QUERIES * Q_PIECES];
#ifdef NO_SUBGROUP
const uint REDUCED = LOCAL_X; // values of a query that are combined in shared memory
#else
const uint REDUCED = (LOCAL_X + SUBGROUP - 1u) / SUBGROUP;
#endif
shared float reduce_s[QUERIES * REDUCED];

// ---- queries

void queries_stage() {
	for (uint i = LANE; i < QUERIES * Q_PIECES; i += LOCAL_X)
		q_s[i] = query_fit(uintBitsToFloat(q[query_at(i / Q_PIECES) + i % Q_PIECES]), i % Q_PIECES);
	barrier();
}
#define STAGED_PIECES (QUERIES * Q_PIECES)
#define STAGED(i) q_s[i]
#define STAGED_SET(i, x) q_s[i] = x
#include "lib/rotate.glsl"
void queries_step(uint step) {}
// score += q . k over 4 channels; k[c] holds channel 8 step + 4 i + c of the quad's 4 tokens. After queries_step(step).
// KEY_SCALES: queries are query(j, step, i), and where KEYS_SCALED, k is times key_scale(step, i): 4 products per
// channel and quad, or one per channel and query.
void score_half(uint step, uint i, vec4 k[4]) {
#ifdef KEY_SCALES
	const vec4 scale = key_scale(step, i);
	if (KEYS_SCALED && QUERIES >= 4u)
		[[unroll]] for (uint c = 0; c < 4u; c++) k[c] *= scale[c];
#endif
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
#ifdef KEY_SCALES
		vec4 q4 = query(j, step, i);
		if (KEYS_SCALED && QUERIES < 4u) q4 *= scale;
#else
		const vec4 q4 = q_s[j * Q_PIECES + step * 2u + i];
#endif
		[[unroll]] for (uint c = 0; c < 4u; c++) score[j] += q4[c] * k[c]; // one by one: each is a multiply-add
	}
}

// ---- reductions over the workgroup

// Within subgroups first if there are any; a workgroup of one subgroup needs no shared memory.
void reduce(inout float x[QUERIES], const bool maximum) {
#ifdef NO_SUBGROUP
	const uint n = LOCAL_X, at = LANE;
	const bool writes = true;
#else
	[[unroll]] for (uint j = 0; j < QUERIES; j++) x[j] = maximum ? subgroupMax(x[j]) : subgroupAdd(x[j]);
	if (LOCAL_X <= SUBGROUP) return;
	const uint n = gl_NumSubgroups, at = gl_SubgroupID;
	const bool writes = subgroupElect();
#endif
	if (writes)
		[[unroll]] for (uint j = 0; j < QUERIES; j++) reduce_s[j * REDUCED + at] = x[j];
	barrier();
	for (uint j = LANE; j < QUERIES; j += LOCAL_X) {
		float r = reduce_s[j * REDUCED];
		for (uint i = 1; i < n; i++) r = maximum ? max(r, reduce_s[j * REDUCED + i]) : r + reduce_s[j * REDUCED + i];
		reduce_s[j * REDUCED] = r;
	}
	barrier();
	[[unroll]] for (uint j = 0; j < QUERIES; j++) x[j] = reduce_s[j * REDUCED];
	barrier();
}

// What join() gives: the sum over both halves of query own_query(m), from x of queries 2 m and 2 m + 1.
#ifdef NO_SUBGROUP
#define JOIN(T) T joined(T even, T odd) { return even; }
#else
#define JOIN(T)                                                                                                        \
	T joined(T even, T odd) {                                                                                          \
		const T give = HALF == 0u ? odd : even;                                                                        \
		return (HALF == 0u ? even : odd) + subgroupShuffleXor(give, 1u);                                               \
	}
#endif
JOIN(vec4)
JOIN(ivec4)
#ifdef NO_SUBGROUP
float other_half(float x) { return x; }
#else
float other_half(float x) { return subgroupShuffleXor(x, 1u); } // x of the lane that shares the quad
#endif
void join() {
	if (QUAD_LANES > 1u)
		[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) score[m] = joined(score[m * 2u], score[m * 2u + 1u]);
}
// As reduce(), of the lane's own queries. With 2 lanes to a quad, the caller has a barrier before the next call.
void reduce_own(inout float x[QUERIES], const bool maximum) {
	if (QUAD_LANES == 1u) {
		reduce(x, maximum);
		return;
	}
#ifndef NO_SUBGROUP
	[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) {
		[[unroll]] for (uint by = QUAD_LANES; by < SUBGROUP; by *= 2u) {
			const float other = subgroupShuffleXor(x[m], by);
			x[m] = maximum ? max(x[m], other) : x[m] + other;
		}
		if (REDUCED > 1u && gl_SubgroupInvocationID < QUAD_LANES)
			reduce_s[own_query(m) * REDUCED + gl_SubgroupID] = x[m];
	}
	if (REDUCED == 1u) return;
	barrier();
	[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) {
		x[m] = reduce_s[own_query(m) * REDUCED];
		[[unroll]] for (uint i = 1; i < REDUCED; i++) {
			const float other = reduce_s[own_query(m) * REDUCED + i];
			x[m] = maximum ? max(x[m], other) : x[m] + other;
		}
	}
#endif
}
