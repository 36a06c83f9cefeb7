// Scores of keys of blocks of tokens, of each row of a work item:
//   score[row][b] = sum over heads of max(q[row][head] . key b, 0) * weight[row][head]
// With FLAGS & INDEX_POOL, of the one head: the largest q[row] . key of p.pool keys, from key p.pool * b on.
//
//   0 score (rows, capacity) f32, written | 1 q (rows, n_heads, HEAD_DIM) f32 | 2 weight (rows, n_heads) f32, unused
//   without FLAGS & INDEX_WEIGHTS | 3 key u32 words, halves | 4 work (n, 8) u32, IndexWork
// Grid: work item = x + z * item_stride, y = QUERIES rows of it. HEAD_DIM: a multiple of 8.
//
// KEYS keys stay in shared memory for all queries, which pass through it, STEP channels of QUERIES at a time: an
// invocation multiplies 4 queries by 4 keys. The queries of a tile are `span` heads, a power of 2, of each row: of many
// rows one head at a time, so that invocations exchange nothing, of a decode row all heads. Either way a sum takes the
// heads in order, so that a row's bits do not depend on the rows beside it.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/work.glsl"
const uint LANES = 128;
layout(local_size_x = LANES) in;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_TILE) const uint KEYS = 64; // 8, 16, 32 or 64
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { IndexScorePush p; };
layout(std430, binding = 0) writeonly restrict buffer Score { float score[]; };
layout(std430, binding = 1) readonly restrict buffer Q { vec4 q[]; };
layout(std430, binding = 2) readonly restrict buffer Weight { float weight[]; };
layout(std430, binding = 3) readonly restrict buffer Key { uvec4 key[]; };
layout(std430, binding = 4) readonly restrict buffer WorkTable { uint work[]; };
const IndexWork FIELD = IndexWork(WORDS_5, uint[3](5u, 6u, 7u));
const bool POOL = (FLAGS & INDEX_POOL) != 0;

const uint PIECES = HEAD_DIM / 8;                                 // 16-byte pieces of a key
const uint KEY_LANES = KEYS / 4, QUERY_LANES = LANES / KEY_LANES; // lanes that share a query, a key
const uint QUERIES = QUERY_LANES * 4, STEP = KEYS;                // of a tile, channels of it: 4 quads for each lane
const uint STRIDE = QUERIES + 1;                                  // so that lanes write to different banks
shared uvec4 key_s[PIECES * KEYS];     // by piece
shared vec4 tile_s[STEP / 4 * STRIDE]; // by quad of channels; then products, by query
const uint OWN_ROWS = (QUERIES + LANES - 1) / LANES; // rows of a tile, of a lane

#include "lib/halves.glsl"

// Adds the products of 4 queries and 4 keys, of STEP channels from c on.
void add_products(uint c, uint key_lane, uint query_lane, inout vec4 dots[4]) {
	[[dont_unroll]] for (uint quad = 0; quad < min(STEP, HEAD_DIM - c) / 4; quad += 2) {
		uvec4 k[4];
		[[unroll]] for (uint j = 0; j < 4; j++) k[j] = key_s[(c / 8 + quad / 2) * KEYS + key_lane + j * KEY_LANES];
		[[unroll]] for (uint part = 0; part < 2; part++)
			[[unroll]] for (uint i = 0; i < 4; i++) {
				const vec4 x = tile_s[(quad + part) * STRIDE + query_lane + i * QUERY_LANES];
				[[unroll]] for (uint j = 0; j < 4; j++) {
					const vec4 y = part == 0 ? halves_low(k[j]) : halves_high(k[j]);
					// not dot(): `precise` below would make its products instructions of their own
					dots[i][j] = fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, dots[i][j]))));
				}
			}
	}
}

void main() {
	const uint lane = gl_LocalInvocationIndex, key_lane = lane % KEY_LANES, query_lane = lane / KEY_LANES;
	const uint item = gl_WorkGroupID.x + gl_WorkGroupID.z * p.item_stride, begin = gl_WorkGroupID.y * QUERIES;
	if (item >= p.n_items) return;
	const uint at = KV_AT(4) + item * INDEX_WORDS, of_item = work[at + FIELD.n_rows], n = work[at + FIELD.n];
	if (begin >= of_item) return; // uniform over all lanes, as the return above
	const uint row0 = work[at + FIELD.row] + begin, n_rows = min(of_item - begin, QUERIES);
	const uint column0 = work[at + FIELD.key], keys_at = (KV_AT(3) + work[at + FIELD.words]) / 4;
	uint shift = 0;
	while (1u << shift < p.n_heads && n_rows << shift + 1 <= QUERIES) shift++;
	const uint span = 1u << shift;
	uint row_of[4], head_of[4]; // of the queries that the lane brings, from the tile's first on
	[[unroll]] for (uint i = 0; i < 4; i++) {
		const uint query = (lane + i * LANES) / (STEP / 4);
		row_of[i] = min(query >> shift, n_rows - 1);
		head_of[i] = query & span - 1;
	}

	float largest[OWN_ROWS];
	for (uint first = 0; first < n; first += KEYS) {
		barrier(); // the keys before these are used
		for (uint i = lane; i < PIECES * KEYS; i += LANES) {
			const uint b = i / PIECES, piece = i % PIECES;
			key_s[piece * KEYS + b] = key[keys_at + min(first + b, n - 1) * PIECES + piece];
		}
		precise vec4 sum[4]; // of 4 keys; one head: of 4 rows, else of up to 2
		[[unroll]] for (uint i = 0; i < 4; i++) sum[i] = vec4(0);
		for (uint head = 0; head < p.n_heads; head += span) {
			vec4 dots[4];
			[[unroll]] for (uint i = 0; i < 4; i++) dots[i] = vec4(0);
			for (uint c = 0; c < HEAD_DIM; c += STEP) {
				// What is no channel, head or row of the item is not used: no branch around a load.
				const uint quad = lane % (STEP / 4), from = KV_AT(1) / 4 + min(c / 4 + quad, HEAD_DIM / 4 - 1);
				vec4 x[4];
				[[unroll]] for (uint i = 0; i < 4; i++) {
					const uint h = min(head + head_of[i], p.n_heads - 1);
					x[i] = q[from + ((row0 + row_of[i]) * p.n_heads + h) * (HEAD_DIM / 4)];
				}
				barrier(); // what the tile held is used
				[[unroll]] for (uint i = 0; i < 4; i++) tile_s[quad * STRIDE + (lane + i * LANES) / (STEP / 4)] = x[i];
				barrier();
				if (query_lane < n_rows * span) add_products(c, key_lane, query_lane, dots); // else they are no row's
			}
			[[unroll]] for (uint i = 0; i < 4; i++) {
				const uint query = query_lane + i * QUERY_LANES, r = min(query >> shift, n_rows - 1);
				const uint h = min(head + (query & span - 1), p.n_heads - 1);
				if (!POOL) dots[i] = max(dots[i], vec4(0));
				if ((FLAGS & INDEX_WEIGHTS) != 0) dots[i] *= weight[KV_AT(2) + (row0 + r) * p.n_heads + h];
			}
			if (shift == 0) { // uniform over all lanes
				[[unroll]] for (uint i = 0; i < 4; i++) sum[i] += dots[i];
				continue;
			}
			barrier(); // the tile is used
			[[unroll]] for (uint i = 0; i < 4; i++) tile_s[i * LANES + lane] = dots[i]; // by query, then by key_lane
			barrier();
			[[unroll]] for (uint i = 0; i < 2; i++) {
				const uint r = query_lane + i * QUERY_LANES;
				if (r < n_rows)
					for (uint h = 0; h < min(span, p.n_heads - head); h++)
						sum[i] += tile_s[((r << shift) + h) * KEY_LANES + key_lane];
			}
		}
		if (POOL) { // a lane has a score, or of more keys than KEYS what they have in common so far
			barrier(); // the tile is used
			[[unroll]] for (uint i = 0; i < 4; i++) tile_s[i * LANES + lane] = sum[i]; // by query, then by key_lane
			barrier();
			const uint of_tile = min(p.pool, KEYS), scores = KEYS / of_tile;
			for (uint i = 0, o = lane; o < n_rows * scores; i++, o += LANES) {
				const uint r = o / scores, from = o % scores * of_tile, column = column0 + (first + from) / p.pool;
				float most = first % p.pool == 0 ? tile_s[r * KEY_LANES + from % KEY_LANES][from / KEY_LANES]
				                                 : largest[min(i, OWN_ROWS - 1)];
				for (uint k = from; k < from + of_tile; k++)
					most = max(most, tile_s[r * KEY_LANES + k % KEY_LANES][k / KEY_LANES]);
				largest[min(i, OWN_ROWS - 1)] = most;
				if ((first + from + of_tile) % p.pool == 0 && first + from < n)
					score[KV_AT(0) + (row0 + r) * p.capacity + column] = most;
			}
			continue;
		}
		[[unroll]] for (uint i = 0; i < 4; i++) {
			const uint r = query_lane + i * QUERY_LANES;
			[[unroll]] for (uint j = 0; j < 4; j++) {
				const uint b = key_lane + j * KEY_LANES;
				if (r < n_rows && first + b < n)
					score[KV_AT(0) + (row0 + r) * p.capacity + column0 + first + b] = sum[i][j];
			}
		}
	}
}
