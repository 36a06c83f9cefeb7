// Scores of a lane's quad (4 consecutive tokens) against QUERIES queries at a time, for drivers on a processor: a
// workgroup is one subgroup, keys and queries are read as texels, queries reach all lanes by shuffles. Queries are
// those of up to ROWS listed rows and HEADS query heads of a kv head; query j is row j / HEADS of the block, head j %
// HEADS.
//
// The including file defines LOCAL_X, HEAD_DIM, HEADS, ROWS, FLAGS; declares q, lse and rows, which are bindings Q_AT,
// LSE_AT and ROWS_AT, and the push struct p with n_heads, scale; and supplies load_quad(). With SEEN_AT, it includes
// lib/seen.glsl.
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#define LANE gl_SubgroupInvocationID
#include "lib/halves.glsl"
#include "lib/saliency.glsl"

const uint QUERIES = HEADS * ROWS;
const uint Q_FETCH = (QUERIES * 2u + LOCAL_X - 1u) / LOCAL_X; // fetches that bring 8 channels of all queries
const uint Q_SIDE = LOCAL_X / 2u;                             // queries of a fetch
const uint STEPS = HEAD_DIM / 8u;

// Channels 8 step + 4 half_ .. of the quad's 4 tokens: k[c] holds channel c of each. `w`: as loaded by load_quad().
void quad_half(uvec4 w[4], const uint half_, out vec4 k[4]);
// 8 channels of the quad of this lane.
void load_quad(uint step, out uvec4 w[4]);

// sum of exp(q . k * scale - lse) over the queries that see a token, of rows [block, block + ROWS) of the n_rows listed
// from `list` on, and of heads [head, head + n_heads_here). Row r sees tokens up to first + r. `token`: the first of
// the lane's quad.
vec4 received(uint list, uint n_rows, uint block, uint head, uint n_heads_here, uint first, uint token) {
	uint at[Q_FETCH];
	vec4 score[QUERIES], sum = vec4(0), squares = vec4(0);
	[[unroll]] for (uint j = 0; j < QUERIES; j++) score[j] = vec4(0);
	[[unroll]] for (uint f = 0; f < Q_FETCH; f++) {
		const uint j = min(f * Q_SIDE + LANE / 2u, QUERIES - 1u);
		const uint row = rows[KV_AT(ROWS_AT) + list + min(block + j / HEADS, n_rows - 1u)];
		at[f] = KV_AT(Q_AT) / 4u + (row * p.n_heads + head + min(j % HEADS, n_heads_here - 1u)) * (HEAD_DIM / 4u) +
		        LANE % 2u;
	}
	// Of query LANE: the last token that it sees, and its normaliser.
	const uint mine = min(LANE, QUERIES - 1u), nth = block + mine / HEADS;
	const uint row = rows[KV_AT(ROWS_AT) + list + min(nth, n_rows - 1u)];
	const bool there = nth < n_rows && mine % HEADS < n_heads_here;
	const int last = there ? int(min(first + row, 0x7fffffffu)) : -1; // first up to 2^31 - 1, so there is no overflow
	const float norm = lse[KV_AT(LSE_AT) + row * p.n_heads + head + min(mine % HEADS, n_heads_here - 1u)];
	// A loop, not a branch: these drivers take both sides of a branch.
	int latest = last;
	[[unroll]] for (uint b = 1u; b < LOCAL_X; b *= 2u) latest = max(latest, subgroupShuffleXor(latest, b));
	const uint steps = latest >= int(token) - int(LANE * 4u) ? STEPS : 0u;
	for (uint step = 0; step < steps; step++) {
		uvec4 w[4];
		vec4 part[Q_FETCH];
		load_quad(step, w);
		[[unroll]] for (uint f = 0; f < Q_FETCH; f++) part[f] = uintBitsToFloat(texelFetch(q, int(at[f] + step * 2u)));
		[[unroll]] for (uint i = 0; i < 2u; i++) {
			vec4 k[4];
			quad_half(w, i, k);
			if (BY_NORM) squares += k[0] * k[0] + k[1] * k[1] + k[2] * k[2] + k[3] * k[3];
			[[unroll]] for (uint j = 0; j < QUERIES; j++) {
				const uint f = j / Q_SIDE, from = j % Q_SIDE * 2u + i;
				score[j] += subgroupShuffle(part[f].x, from) * k[0] + subgroupShuffle(part[f].y, from) * k[1] +
							subgroupShuffle(part[f].z, from) * k[2] + subgroupShuffle(part[f].w, from) * k[3];
			}
		}
	}
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		bvec4 sees = lessThanEqual(ivec4(int(token)) + ivec4(0, 1, 2, 3), ivec4(subgroupShuffle(last, j)));
#ifdef SEEN_AT
		if (SEEN) {
			const uint of = rows[KV_AT(ROWS_AT) + list + min(block + j / HEADS, n_rows - 1u)];
			sees = bvec4(uvec4(sees) & uvec4(seen_bits(of, gl_WorkGroupID.y, token)) >> uvec4(0, 1, 2, 3));
		}
#endif
		const vec4 share = BY_ATTENTION ? exp(scores(score[j]) - subgroupShuffle(norm, j)) : vec4(1);
		sum += mix(vec4(0), share, sees);
	}
	return BY_NORM ? sum * key_weight(squares) : sum;
}
