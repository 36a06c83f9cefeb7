// Attention by cooperative matrices: QUERIES queries over tiles of KEYS tokens. Shared by attend_matrix.comp (pages)
// and attend_prompt_matrix.comp (a prompt's own rows).
//
// A tile's keys and values lie in shared memory as halves, decoded once for all queries. Keys lie by token and values
// by channel, so that a lane's elements of a matrix are contiguous. GROUPS subgroups share GROUP_ROWS queries, which
// they keep in matrices, or with KEPT in shared memory. Each subgroup multiplies them with every GROUPS-th matrix of
// the tile's keys, and their weights with every GROUPS-th matrix of its values. With more subgroups than matrices of
// keys, SPLITS subgroups share one, and each takes a part of the channels, so that it keeps that part of the queries
// alone. In between, scores pass through shared memory, where lanes add the parts and turn them into weights. More than
// two parts of scores take the place of the tile's keys, at the price of a barrier. Products are of halves, sums in
// f32. The mapping of matrix elements to lanes is unknown, so a factor per row is also loaded as a matrix, with a
// stride of 0.
//
// IN_REGISTERS: the device reduces and converts matrices (lib/matrix_rows.glsl). Then each subgroup takes rows of its
// own (GROUPS is 1), and scores become weights in the registers of the product: between the barriers around a tile
// there is none. All columns of the matrices `top`, `total` and `factor` are equal.
//
// A query's bits depend on its own tiles alone: neither on the other queries nor on tiles of which it sees nothing.
//
// The including file defines LOCAL_X, SUBGROUP, GROUPS, HEAD_DIM, QUERIES (64; 128 where registers hold a subgroup's
// sums for 32 rows; 32 where shared memory does not hold more), KEYS (32, or 16 where shared memory does not hold
// more), AHEAD, KEPT, M, N, K, Q_ROTATE, V_ROTATE and what lib/softcap.glsl needs, declares q, and supplies:
//   uint query_at(uint j)                  first 16-byte piece of query j in q; any valid one where there is no query j
//   vec4 query_fit(vec4 x, uint c)         x, channels 4 c .. 4 c + 3 of a query, as the keys want them
//   void tile_fetch(uint tile)             loads what tile_key() and tile_value() need
//   uvec2 key_place(uint i)                token of the tile and piece of its row: the i-th piece of keys of this lane
//   uvec4 tile_key(uint i), tile_value(i)  the halves at key_place(i), value_place(i) of the tile that was fetched last
//   uint tile_live()                       what tile_seen() needs of the tile that was fetched last
//   uint tile_seen(uint tile, uint live, uint j)  bit t: query j sees token t of the tile
//   bool tile_whole(uint tile, uint live)  IN_REGISTERS: whether every query sees all of it; may be false then, too
//   float query_done(uint j, float top, float total)   takes the maximum of its scores and the sum of its weights;
//                                                      returns the total that piece_done() gets
//   void piece_done(uint j, uint c, vec4 sums, float total)  takes its weighted sums of values, channels 4 c .. 4 c + 3
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require

#define LANE gl_LocalInvocationIndex
#include "lib/codes.glsl"
#include "lib/halves.glsl"
#include "lib/book.glsl"
#include "lib/no_token.glsl"
#include "lib/pieces.glsl"
#include "lib/softcap.glsl"

#define SUMS fcoopmatNV<32, gl_ScopeSubgroup, M, N>
const uint STAGED_ROWS = 16u;                                // results in shared memory at a time, as floats
const uint STAGED_QUERIES = HEAD_DIM > 256u ? 4u : STAGED_ROWS; // the same, of queries
const uint GROUP_ROWS = QUERIES * SUBGROUP * GROUPS / LOCAL_X;
const uint ROW_TILES = GROUP_ROWS / M;
const uint COL_TILES = HEAD_DIM / N, OWN_COLS = (COL_TILES + GROUPS - 1u) / GROUPS; // matrices of values, of a subgroup
const bool UNEVEN = COL_TILES % GROUPS != 0u; // not every subgroup has a last matrix
const uint KEY_TILES = KEYS / N, SPLITS = GROUPS > KEY_TILES ? GROUPS / KEY_TILES : 1u;
const uint KEY_GROUPS = GROUPS / SPLITS, OWN_KEYS = KEY_TILES / KEY_GROUPS; // of keys: subgroups, matrices of each
const uint STEPS = HEAD_DIM / K / SPLITS, KEY_STEPS = KEYS / K;             // of scores, of values
const uint PIECES = HEAD_DIM / 8u, TILE_PIECES = KEYS * PIECES, OWN_PIECES = (TILE_PIECES + LOCAL_X - 1u) / LOCAL_X;
const uint TILE_PAIRS = KEYS / 2u * PIECES,
           OWN_PAIRS = (TILE_PAIRS + LOCAL_X - 1u) / LOCAL_X; // pieces of two tokens' values
const uint OWN_VALUES = 2u * OWN_PAIRS;
// Strides in 16-byte pieces: from token to token of keys, from channel to channel of values, from query to query of
// scores and of the weights that replace them. The 1 spreads them over banks.
const uint STRIDE = PIECES + 1u, VALUE_STRIDE = KEYS / 8u + 1u, SCORE_STRIDE = KEYS / 4u + 1u;
const uint KEYS_END = KEYS * STRIDE, SPLIT_SCORES = QUERIES * SCORE_STRIDE, ALL_SCORES = SPLITS * SPLIT_SCORES;
const bool OVER_KEYS = SPLITS > 2u; // scores take the place of keys; OWN_KEYS is 1 then
const uint VALUES = OVER_KEYS && ALL_SCORES > KEYS_END ? ALL_SCORES : KEYS_END; // where values begin in tile_s
const uint VALUES_END = VALUES + HEAD_DIM * VALUE_STRIDE, SCORES = OVER_KEYS ? 0u : VALUES_END;
#ifdef IN_REGISTERS
const bool REGISTERS = true;
#else
const bool REGISTERS = false;
#endif
const uint TILE = REGISTERS || OVER_KEYS ? VALUES_END : VALUES_END + ALL_SCORES;
const uint OWN_ROWS = GROUP_ROWS / GROUPS; // rows of scores that a subgroup turns into weights
const uint ROW_LANES = SUBGROUP / OWN_ROWS < KEYS / 4u ? SUBGROUP / OWN_ROWS : KEYS / 4u;
const uint LANE_QUADS = KEYS / 4u / ROW_LANES, BUSY = OWN_ROWS * ROW_LANES; // quads of a lane; lanes with a row
// Weights are at most 1, and normal numbers as halves down to 2^-26 with this factor.
const float WEIGHT_ONE = 4096.0;

const uint STAGED_PIECES = STAGED_ROWS * (HEAD_DIM / 4u), QUERY_PIECES = STAGED_QUERIES * (HEAD_DIM / 4u);
// Queries become matrices in parts of their channels, so that wide heads need no more room than a tile.
const uint NEED_1 = QUERY_PIECES + QUERIES * STRIDE, NEED_2 = QUERY_PIECES + QUERIES * (PIECES / 2u + 1u);
const uint PARTS = KEPT || NEED_1 <= TILE ? 1u : NEED_2 <= TILE ? 2u : 4u;
const uint PART_PIECES = PIECES / PARTS, PART_STEPS = STEPS / PARTS, PART_STRIDE = PART_PIECES + 1u;
const uint SPLIT_PIECES = PIECES / SPLITS, PART_SPLIT = PART_PIECES / SPLITS; // a part has channels of every split
const uint QUERIES_END = KEPT ? QUERY_PIECES : QUERY_PIECES + QUERIES * PART_STRIDE;
const uint ROW_SUMS = REGISTERS ? 2u * QUERIES * (N / 4u) : 0u; // maxima and totals of rows, after the last tile
const uint BEFORE = TILE > QUERIES_END ? TILE : QUERIES_END;
const uint AFTER = STAGED_PIECES > ROW_SUMS ? STAGED_PIECES : ROW_SUMS;
const uint TILE_END = BEFORE > AFTER ? BEFORE : AFTER, QUERIES_AT = KEPT ? TILE_END : QUERY_PIECES;
// Halves: keys [token][piece], values [channel][8 tokens]; then scores [query][4 tokens] as floats, which become
// weights [query][8 tokens] as halves. Before: queries [query][piece]. Before and after: staged rows as floats.
shared uvec4 tile_s[TILE_END + (KEPT ? QUERIES * STRIDE : 0u)];
shared float row_s[QUERIES]; // a factor of each query

#define STAGED(i) uintBitsToFloat(tile_s[i])
#define STAGED_SET(i, x) tile_s[i] = floatBitsToUint(x)
#include "lib/rotate.glsl"

vec4 query_fit(vec4 x, uint c);
void tile_fetch(uint tile);
uvec4 tile_key(uint i);
uvec4 tile_value(uint i);
uvec2 key_place(uint i);
uint tile_live();
uint tile_seen(uint tile, uint live, uint j);
#ifdef IN_REGISTERS
bool tile_whole(uint tile, uint live);
#include "lib/matrix_rows.glsl"
#endif
float query_done(uint j, float top, float total);
void piece_done(uint j, uint c, vec4 sums, float total);

// As key_place(), for values: pieces i and i + 1 (i even) are of tokens 2 u and 2 u + 1, whose halves share words in
// shared memory. Lanes without a piece get a valid place.
uvec2 value_place(uint i) {
	const uint at = min(i / 2u * LOCAL_X + LANE, TILE_PAIRS - 1u);
	return uvec2(at % (KEYS / 2u) * 2u + i % 2u, at / (KEYS / 2u));
}
void put_values(uint pair, uvec4 even, uvec4 odd) {
	const uvec2 at = value_place(2u * pair);
	if (pair * LOCAL_X + LANE >= TILE_PAIRS) return;
	[[unroll]] for (uint c = 0; c < 8u; c++) {
		const uint e = even[c / 2u], o = odd[c / 2u];
		tile_s[VALUES + (at.y * 8u + c) * VALUE_STRIDE + at.x / 8u][at.x / 2u % 4u] =
			c % 2u == 0u ? (e & 0xffffu) | o << 16u : e >> 16u | (o & 0xffff0000u);
	}
}

// Stages queries as floats, and one part of their channels as halves.
void stage_part(const uint part) {
	[[dont_unroll]] for (uint first = 0; first < QUERIES; first += STAGED_QUERIES) {
		for (uint i = LANE; i < QUERY_PIECES; i += LOCAL_X) {
			const uint c = i % (HEAD_DIM / 4u);
			STAGED_SET(i, query_fit(uintBitsToFloat(q[query_at(first + i / (HEAD_DIM / 4u)) + c]), c));
		}
		barrier();
		if (Q_ROTATE) rotate_staged(QUERY_PIECES, false);
		for (uint i = LANE; i < STAGED_QUERIES * PART_PIECES; i += LOCAL_X) {
			const uint at = i % PART_PIECES, s = SPLITS == 1u ? 0u : at / PART_SPLIT;
			const uint from = i / PART_PIECES * PIECES + s * SPLIT_PIECES + part * PART_SPLIT + at - s * PART_SPLIT;
			tile_s[QUERIES_AT + (first + i / PART_PIECES) * PART_STRIDE + i % PART_PIECES] =
				finite_halves8(STAGED(2u * from), STAGED(2u * from + 1u));
		}
		barrier();
	}
}
// Stages the part and loads its matrices. A macro instead of a loop over parts: Mesa's compilers for Intel (2 parts)
// and NVIDIA (4) do not unroll that loop, and keep the matrices in memory. Not inside a branch at run time: Mesa's AMD
// compiler would copy their halves for every tile.
#define LOAD_PART(part)                                                                                                \
	{                                                                                                                  \
		stage_part(part);                                                                                              \
		if (!KEPT) {                                                                                                   \
			[[unroll]] for (uint r = 0; r < ROW_TILES; r++)                                                            \
				[[unroll]] for (uint k = 0; k < PART_STEPS; k++) coopMatLoadNV(                                        \
				    queries[r * STEPS + part * PART_STEPS + k], tile_s,                                                \
				    QUERIES_AT + (row0 + r * M) * PART_STRIDE + split * PART_SPLIT + k * (K / 8u), PART_STRIDE,        \
				    false);                                                                                            \
			barrier();                                                                                                 \
		}                                                                                                              \
	}

// Attends to the tokens of tiles 0 .. n_tiles - 1.
void attend(uint first_tile, uint n_tiles) {
	const uint row0 = gl_SubgroupID / GROUPS * GROUP_ROWS, group = gl_SubgroupID % GROUPS;
	const uint split = SPLITS == 1u ? 0u : group / KEY_GROUPS, key_group = SPLITS == 1u ? group : group % KEY_GROUPS;
	fcoopmatNV<16, gl_ScopeSubgroup, M, K> queries[KEPT ? ROW_TILES : ROW_TILES * STEPS];
	LOAD_PART(0u);
	if (PARTS > 1u) LOAD_PART(1u);
	if (PARTS > 2u) {
		LOAD_PART(2u);
		LOAD_PART(3u);
	}

#ifdef IN_REGISTERS
	SUMS top[ROW_TILES], total[ROW_TILES]; // maximum; sum of weights
	[[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
		top[r] = SUMS(NO_TOKEN);
		total[r] = SUMS(0.0);
	}
	const fcoopmatNV<16, gl_ScopeSubgroup, K, N> ones = fcoopmatNV<16, gl_ScopeSubgroup, K, N>(1.0);
#else
	// This lane's part of a row of scores: query j, quads quad0 ..
	const uint in_subgroup = gl_SubgroupInvocationID, j = gl_SubgroupID * OWN_ROWS + in_subgroup % OWN_ROWS;
	const bool busy = BUSY == SUBGROUP || in_subgroup < BUSY; // other lanes repeat a busy lane's work, without writing
	const uint quad0 = in_subgroup % BUSY / OWN_ROWS * LANE_QUADS;
	float top = NO_TOKEN, total = 0; // maximum; sum of weights, this lane's share
#endif
	SUMS acc[ROW_TILES * OWN_COLS];
	[[unroll]] for (uint i = 0; i < ROW_TILES * OWN_COLS; i++) acc[i] = SUMS(0.0);

	if (AHEAD) tile_fetch(first_tile);
	for (uint tile = first_tile; tile < n_tiles; tile++) {
		if (!AHEAD) tile_fetch(tile);
		[[unroll]] for (uint i = 0; i < OWN_PIECES; i++) {
			const uvec4 k = tile_key(i);
			const uvec2 at = key_place(i);
			if (i * LOCAL_X + LANE < TILE_PIECES) tile_s[at.x * STRIDE + at.y] = k;
		}
		[[unroll]] for (uint i = 0; i < OWN_PAIRS; i++) put_values(i, tile_value(2u * i), tile_value(2u * i + 1u));
#ifdef IN_REGISTERS
		const uint live = tile_live();
		const bool whole = tile_whole(tile, live);
#else
		const uint seen = tile_seen(tile, tile_live(), j) >> quad0 * 4u;
#endif
		barrier();
		if (AHEAD && tile + 1u < n_tiles) tile_fetch(tile + 1u); // loaded while this one is multiplied

		SUMS score[REGISTERS ? OWN_KEYS * ROW_TILES : ROW_TILES];
		[[unroll]] for (uint i = 0; i < OWN_KEYS; i++) {
			const uint n = i * KEY_GROUPS + key_group, at = REGISTERS ? i * ROW_TILES : 0u;
			[[unroll]] for (uint r = 0; r < ROW_TILES; r++) score[at + r] = SUMS(0.0);
			[[unroll]] for (uint k = 0; k < STEPS; k++) {
				fcoopmatNV<16, gl_ScopeSubgroup, K, N> keys;
				coopMatLoadNV(keys, tile_s, n * N * STRIDE + split * SPLIT_PIECES + k * (K / 8u), STRIDE, true);
				[[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
					const uint query = KEPT ? r : r * STEPS + k;
					if (KEPT)
						coopMatLoadNV(queries[query], tile_s,
						              QUERIES_AT + (row0 + r * M) * STRIDE + split * SPLIT_PIECES + k * (K / 8u),
						              STRIDE, false);
					score[at + r] = coopMatMulAddNV(queries[query], keys, score[at + r]);
				}
			}
#ifndef IN_REGISTERS
			if (OVER_KEYS) barrier(); // all have multiplied the keys
			[[unroll]] for (uint r = 0; r < ROW_TILES; r++)
				coopMatStoreNV(score[r], tile_s,
				               SCORES + split * SPLIT_SCORES + (row0 + r * M) * SCORE_STRIDE + n * (N / 4u),
				               SCORE_STRIDE, false);
#endif
		}
#ifndef IN_REGISTERS
		barrier();

		vec4 w[LANE_QUADS];
		float most = NO_TOKEN;
		[[unroll]] for (uint i = 0; i < LANE_QUADS; i++) {
			const bvec4 blind = equal(uvec4(seen >> i * 4u) & uvec4(1, 2, 4, 8), uvec4(0));
			const uint from = SCORES + j * SCORE_STRIDE + quad0 + i;
			vec4 product = uintBitsToFloat(tile_s[from]);
			[[unroll]] for (uint s = 1; s < SPLITS; s++) product += uintBitsToFloat(tile_s[from + s * SPLIT_SCORES]);
			w[i] = mix(scores(product), vec4(NO_TOKEN), blind);
			most = max(most, max(max(w[i].x, w[i].y), max(w[i].z, w[i].w)));
		}
		[[unroll]] for (uint step = OWN_ROWS; step < BUSY; step *= 2u) most =
		    max(most, subgroupShuffleXor(most, step));
		const float now = max(top, most), base = now == NO_TOKEN ? 0.0 : now;
		// Exactly 1 where the tile changes nothing.
		const float shrink = now == top ? 1.0 : exp(top - base);
		top = now;
		total *= shrink;
		subgroupBarrier(); // all lanes of a row have read its scores
		[[unroll]] for (uint i = 0; i < LANE_QUADS; i++) {
			const vec4 x = exp(w[i] - base) * WEIGHT_ONE;
			const uvec2 halves = uvec2(packHalf2x16(x.xy), packHalf2x16(x.zw));
			const vec2 used = unpackHalf2x16(halves.x) + unpackHalf2x16(halves.y); // rounded: a mean stays a mean
			total += used.x + used.y;
			const uint at = SCORES + j * SCORE_STRIDE + (quad0 + i) / 2u;
			if (!busy) continue;
			if ((quad0 + i) % 2u == 0u) tile_s[at].xy = halves;
			else tile_s[at].zw = halves;
		}
		if (busy && quad0 == 0u) row_s[j] = shrink;
		barrier();
#endif

		[[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
			SUMS factor;
#ifdef IN_REGISTERS
			SUMS now = top[r];
			[[unroll]] for (uint n = 0; n < KEY_TILES; n++) {
				const uint at = n * ROW_TILES + r;
				for (int e = 0; e < now.length(); e++) score[at][e] = score_of(score[at][e]);
				if (!whole) score[at] = masked(score[at], row0 + r * M, n * N, tile, live);
				for (int e = 0; e < now.length(); e++) now[e] = max(now[e], score[at][e]);
			}
			now = row_largest(now);
			for (int e = 0; e < now.length(); e++) {
				const float base = now[e] == NO_TOKEN ? 0.0 : now[e];
				// Exactly 1 where the tile changes nothing.
				factor[e] = now[e] == top[r][e] ? 1.0 : exp(top[r][e] - base);
				total[r][e] *= factor[e];
			}
			[[unroll]] for (uint n = 0; n < KEY_TILES; n++)
				for (int e = 0; e < now.length(); e++)
					score[n * ROW_TILES + r][e] =
						exp(score[n * ROW_TILES + r][e] - (now[e] == NO_TOKEN ? 0.0 : now[e])) * WEIGHT_ONE;
			top[r] = now;
#else
			coopMatLoadNV(factor, row_s, row0 + r * M, 0u, true);
#endif
			[[unroll]] for (uint c = 0; c < OWN_COLS; c++)
				for (int e = 0; e < factor.length(); e++) acc[r * OWN_COLS + c][e] *= factor[e];
		}
		[[unroll]] for (uint k = 0; k < KEY_STEPS; k++) {
			fcoopmatNV<16, gl_ScopeSubgroup, M, K> weights[ROW_TILES];
#ifdef IN_REGISTERS
			[[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
				weights[r] = to_operand(score[k * ROW_TILES + r]);
				total[r] = coopMatMulAddNV(weights[r], ones, total[r]); // sums of rounded weights: a mean stays a mean
			}
#else
			[[unroll]] for (uint r = 0; r < ROW_TILES; r++)
				coopMatLoadNV(weights[r], tile_s, SCORES + (row0 + r * M) * SCORE_STRIDE + k * (K / 8u),
				              SCORE_STRIDE, false);
#endif
			[[unroll]] for (uint c = 0; c < OWN_COLS; c++) {
				if (UNEVEN && c * GROUPS + group >= COL_TILES) break;
				fcoopmatNV<16, gl_ScopeSubgroup, K, N> values;
				coopMatLoadNV(values, tile_s, VALUES + (c * GROUPS + group) * N * VALUE_STRIDE + k * (K / 8u),
				              VALUE_STRIDE, true);
				[[unroll]] for (uint r = 0; r < ROW_TILES; r++)
					acc[r * OWN_COLS + c] = coopMatMulAddNV(weights[r], values, acc[r * OWN_COLS + c]);
			}
		}
		barrier(); // the next tile overwrites this one
	}

#ifdef IN_REGISTERS
	[[unroll]] for (uint r = 0; r < ROW_TILES; r++) {
		coopMatStoreNV(top[r], tile_s, (row0 + r * M) * (N / 4u), N / 4u, false);
		coopMatStoreNV(total[r], tile_s, (QUERIES + row0 + r * M) * (N / 4u), N / 4u, false);
	}
	barrier();
	for (uint j = LANE; j < QUERIES; j += LOCAL_X)
		row_s[j] = query_done(j, uintBitsToFloat(tile_s[j * (N / 4u)].x),
		                      uintBitsToFloat(tile_s[(QUERIES + j) * (N / 4u)].x) / WEIGHT_ONE);
	barrier();
#else
	[[unroll]] for (uint step = OWN_ROWS; step < BUSY; step *= 2u) total += subgroupShuffleXor(total, step);
	total /= WEIGHT_ONE;
	if (busy && quad0 == 0u) row_s[j] = query_done(j, top, total);
#endif
	[[dont_unroll]] for (uint first = 0; first < QUERIES; first += STAGED_ROWS) {
		[[unroll]] for (uint r = 0; r < ROW_TILES; r++)
			if ((row0 + r * M) / STAGED_ROWS == first / STAGED_ROWS)
				[[unroll]] for (uint c = 0; c < OWN_COLS; c++) if (!UNEVEN || c * GROUPS + group < COL_TILES)
				    coopMatStoreNV(acc[r * OWN_COLS + c], tile_s,
				                   (row0 + r * M - first) * (HEAD_DIM / 4u) + (c * GROUPS + group) * (N / 4u),
				                   HEAD_DIM / 4u, false);
		barrier();
		if (V_ROTATE) rotate_staged(STAGED_PIECES, true);
		for (uint i = LANE; i < STAGED_PIECES; i += LOCAL_X) {
			const uint row = first + i / (HEAD_DIM / 4u);
			piece_done(row, i % (HEAD_DIM / 4u), STAGED(i) / WEIGHT_ONE, row_s[row]);
		}
		barrier();
	}
}
