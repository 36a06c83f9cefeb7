// Online softmax over tiles of tokens, and the weighted sum of V: what attend.comp and attend_prompt.comp share.
//
// A workgroup serves QUERIES queries that read the same keys and values. It takes tokens in tiles; QUAD_LANES lanes own
// a quad (4 consecutive tokens) of a tile while they work on keys, and 8 channels of every V_ROWS-th quad while it sums
// values. Packed V with one scale per token and head costs no more than f16: in sum_t w_t (scale_t code_t + zero_t),
// codes are multiplied by w_t scale_t, computed once per token, and sum_t w_t zero_t is summed separately. With several
// runs of channels these would take 20 bytes of shared memory per token, query and run, so lanes scale the decoded
// values instead.
//
// Weights pass between lanes through shared memory. The maximum of a tile uses subgroup arithmetic unless NO_SUBGROUP.
// Software drivers have kernels of their own: texel/attend.glsl.
//
// The including file defines LOCAL_X, QUAD_LANES, SUBGROUP, HEAD_DIM, PAGE, QUERIES, SCALES, K_STAGED, V_BITS, V_GROUP,
// V_NORM, declares q, v_codes and, for packed V, V_DOT (with INT8, lib/dot.glsl and lib/dot_memory.glsl come first),
// V_BOOK, V_BYTES, v_words, v_params, v_param_words, v_factors, and supplies:
//   uint query_at(uint j)           first 16-byte piece of query j in q; any valid one where there is no query j
//   vec4 query_fit(vec4 x, uint c)  x, channels 4 c .. 4 c + 3 of a query, as the keys want them
#include "lib/queries.glsl"
#include "lib/no_token.glsl"
#include "lib/pieces.glsl"

const uint CHUNKS = HEAD_DIM / 8u;                                  // pieces of a V row that a lane takes at once
const uint ROW_LANES = CHUNKS < LOCAL_X ? CHUNKS : LOCAL_X;
const uint V_ROWS = LOCAL_X / ROW_LANES;                            // V rows read side by side
const uint OWN = (CHUNKS + ROW_LANES - 1u) / ROW_LANES;             // chunks of a lane
#ifdef V_PARAMS
const uint V_RUN = V_BOOK ? HEAD_DIM : V_GROUP;                     // channels that share a scale
const bool V_FOLD = V_BITS < 16u && !V_DOT && !V_NORM && V_RUN >= HEAD_DIM;   // scales are in the weights
const bool V_FOLD_ZEROS = V_FOLD && !V_BOOK;                                  // codebooks have no zero points
const bool V_RUNS_SCALED = V_RUN < HEAD_DIM || V_NORM;                          // in steps: glslang 12
const bool V_SCALED = V_BITS < 16u && !V_DOT && V_RUNS_SCALED;                // decoded values are scaled
const uint V_LOADS_AHEAD = (FLAGS & ATTEND_LOAD_AHEAD) != 0u ? 4u : 1u; // rounds whose loads are under way together
#else
const uint V_LOADS_AHEAD = 1u;
const bool V_FOLD = false, V_FOLD_ZEROS = false, V_SCALED = false, V_DOT = false;
#endif
const uint V_STRIDE = V_BITS == 16u  ? HEAD_DIM / 8u                // token to token: pieces, words
					  : V_BITS == 3u ? (HEAD_DIM * 2u + 31u) / 32u + (HEAD_DIM + 31u) / 32u
									 : (HEAD_DIM * V_BITS + 31u) / 32u;

vec4 acc[QUERIES * OWN * 2u];     // [query][own chunk][half]: sum of weight * value
float top[QUERIES];               // [own query] maximum score so far, the same in all lanes that own it
float total[QUERIES];             // [own query] sum of weights; only this lane's share until state_finish()
float zero_acc[QUERIES * OWN];    // [query][own chunk] sum of weight * zero, which all channels of the chunk get

// One piece of memory holds in turn the SCALES of keys (of the including file), weights [query][quad], and at the end
// the sums of other V rows. With V_DOT, weights and sums are in dot_s instead.
const bool V_DOT_ZEROS = V_DOT && !V_NORM, V_ZEROS = V_FOLD_ZEROS || V_DOT_ZEROS; // two steps: glslang 12
const uint ROW_SUMS = V_ROWS > 1u ? 2u * LOCAL_X : 0u, SUMS = V_DOT ? 0u : ROW_SUMS;
const uint WEIGHTS = V_DOT ? 1u : QUERIES * QUADS;
const uint WORK = (WEIGHTS > SCALES ? WEIGHTS : SCALES) > SUMS ? (WEIGHTS > SCALES ? WEIGHTS : SCALES) : SUMS;
const uint QUAD_SCALES = V_SCALED ? QUADS : 1u;
shared vec4 work_s[WORK];
shared float zeros_s[V_FOLD_ZEROS ? WEIGHTS : 1u];
shared uvec2 quad_s[V_DOT ? 1u : QUADS]; // as in tile_values(): at, live
shared uvec2 quad_scales_s[QUAD_SCALES]; // params, more
void state_clear() {
	[[unroll]] for (uint i = 0; i < QUERIES * OWN * 2u; i++) acc[i] = vec4(0);
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		top[j] = NO_TOKEN;
		total[j] = 0;
	}
	[[unroll]] for (uint i = 0; i < QUERIES * OWN; i++) zero_acc[i] = 0;
}

// ---- a tile

#ifdef V_PARAMS
// Scale and zero point of a quad's tokens, at word `at` of v_params; `largest`: word of the largest (scale, zero) for
// bytes.
void params_at(uint at, uint largest, out vec4 scale, out vec4 zero) {
	const uvec4 w = v_params[at / 4u];
	if (V_BYTES) byte_params_of((at & 2u) == 0u ? w.xy : w.zw, v_param_words[largest], scale, zero);
	else params_of(w, scale, zero);
}
// As params_at(); with norms, (norm, 0). 0 for tokens that are not live: their parameters may be anything.
void params_of_weights(uint live, uint at, uint largest, out vec4 scale, out vec4 zero) {
	const bvec4 dead = equal(uvec4(live) & uvec4(1, 2, 4, 8), uvec4(0));
	if (!V_BOOK) params_at(at, largest, scale, zero);
	else if (V_BYTES) scale = norms_of_bytes(v_param_words[at], v_param_words[largest]);
	else scale = norms_of_halves(v_param_words[at], v_param_words[at + 1u]);
	scale = mix(scale, vec4(0), dead);
	zero = V_BOOK ? vec4(0) : mix(zero, vec4(0), dead);
}
#endif
#ifdef INT8
#include "lib/values_dot.glsl"
#endif

void shrink_sums(uint j, float by) { // of query j
	[[unroll]] for (uint i = 0; i < OWN * 2u; i++) acc[j * OWN * 2u + i] *= by;
	if (V_ZEROS)
		[[unroll]] for (uint o = 0; o < OWN; o++) zero_acc[j * OWN + o] *= by;
}

// Turns scores (NO_TOKEN where a query does not see a token) into weights, and rescales earlier sums. Bit i of `live`:
// token i of the lane's quad is live; `params`: word of v_params where the quad's first run begins, or its norms;
// `largest`: word of the largest norm, or (scale, zero).
void tile_softmax(uint live, uint params, uint largest) {
	float tile[QUERIES];
	[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++)
		tile[m] = max(max(score[m].x, score[m].y), max(score[m].z, score[m].w));
	reduce_own(tile, true);
	[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) {
		const float now = max(top[m], tile[m]), base = now == NO_TOKEN ? 0.0 : now;
		// Exactly 1 where the tile changes nothing, so that a row's result does not depend on tiles it sees nothing of.
		const float shrink = now == top[m] ? 1.0 : exp(top[m] - base);
		top[m] = now;
		score[m] = exp(score[m] - base);
		total[m] = total[m] * shrink + (score[m].x + score[m].y + score[m].z + score[m].w);
		if (QUAD_LANES == 1u) {
			shrink_sums(m, shrink);
		} else {
			const float other = other_half(shrink);
			shrink_sums(m * 2u, HALF == 0u ? shrink : other);
			shrink_sums(m * 2u + 1u, HALF == 0u ? other : shrink);
		}
	}
	if (K_STAGED) barrier(); // all lanes have read the keys
#ifdef INT8
	if (V_DOT) {
		round_weights(live, params, largest);
		return;
	}
#endif
	if (!V_FOLD)
		[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) work_s[own_query(m) * QUADS + QUAD] = score[m];
#ifdef V_PARAMS
	if (V_FOLD) {
		vec4 scale, zero;
		params_of_weights(live, params, largest, scale, zero);
		[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) {
			const uint to = own_query(m) * QUADS + QUAD;
			work_s[to] = score[m] * scale;
			if (V_FOLD_ZEROS) zeros_s[to] = dot(score[m], zero);
		}
	}
#endif
}

// Chunk c of a V row, 8 channels: of f16 values at piece `at`, or the words of codes at word `at`. A row that is not
// live (mask 0, else ~0) gives zeros, whatever the memory holds.
uvec4 load_v(uint at, uint c, uint mask) {
#ifdef V_PARAMS
	if (V_BITS < 16u) {
		const bool two = V_BITS == 8u || V_BITS == 3u;
		return uvec4(v_words[at + piece_word(c, V_BITS)], two ? v_words[at + piece_word2(c, V_BITS)] : 0u, 0u, 0u);
	}
#endif
	return v_codes[at + c] & uvec4(mask);
}
// The same as floats.
void decode_v(uvec4 w, uint c, uint mask, out vec4 low, out vec4 high) {
#ifdef V_PARAMS
	if (V_BITS < 16u) {
		piece_codes(w.x, w.y, c, V_BITS, mask, low, high);
		if (V_BOOK) {
			low = book_values(low, V_BITS);
			high = book_values(high, V_BITS);
		}
		return;
	}
#endif
	low = halves_low(w);
	high = halves_high(w);
}

// Adds the values of the tile. Of the lane's quad: `at`, where its V begins (16-byte pieces; words if V is packed),
// always inside the buffer; bit i of `live`: token i has values; `params`, only with V_SCALED, as in tile_softmax();
// `more`, only with V_SCALED: `largest` of tile_softmax(), or with V_NORM the word of v_factors where the channel
// factors of the kv head begin. `quads`: how many of the tile exist.
void tile_values(uint at, uint live, uint params, uint more, uint quads) {
	const uint rounds = (min(quads, QUADS) + V_ROWS - 1u) / V_ROWS;
	const uint row = LANE / ROW_LANES, chunk = LANE % ROW_LANES;
	if (HALF == 0u) {
		quad_s[QUAD] = uvec2(at, live);
		if (V_SCALED) quad_scales_s[QUAD] = uvec2(params, more);
	}
	barrier();
	[[dont_unroll]] for (uint first = 0; first < rounds; first += V_LOADS_AHEAD) {
		uvec4 v[V_LOADS_AHEAD][OWN * 4u]; // loads that are under way together
		[[unroll]] for (uint a = 0; a < V_LOADS_AHEAD; a++) {
			const uint i = (first + a) * V_ROWS + row, quad = min(i, QUADS - 1u);
			const uint v_at = quad_s[quad].x;
			const uint v_live = i >= QUADS || row >= V_ROWS ? 0u : quad_s[quad].y;
			[[unroll]] for (uint o = 0; o < OWN; o++) {
				const uint c = min(chunk + o * ROW_LANES, CHUNKS - 1u);
				[[unroll]] for (uint t = 0; t < 4u; t++) {
					// A token that is not live may lie outside the buffer, or hold anything, infinities included.
					const uint mask = 0u - (v_live >> t & 1u);
					v[a][o * 4u + t] = load_v(v_at + (t * V_STRIDE & mask), c, mask);
				}
			}
		}
		[[unroll]] for (uint a = 0; a < V_LOADS_AHEAD; a++) {
			const uint i = (first + a) * V_ROWS + row, quad = min(i, QUADS - 1u);
			const uint v_live = i >= QUADS || row >= V_ROWS ? 0u : quad_s[quad].y;
			[[unroll]] for (uint o = 0; o < OWN; o++) {
				const uint c = min(chunk + o * ROW_LANES, CHUNKS - 1u);
				if (V_FOLD_ZEROS)
					[[unroll]] for (uint j = 0; j < QUERIES; j++)
						zero_acc[j * OWN + o] += v_live != 0u ? zeros_s[j * QUADS + quad] : 0.0;
#ifdef V_PARAMS
				vec4 scale, zero, factor_low, factor_high;
				if (V_SCALED) {
					const uint run = V_GROUP < HEAD_DIM ? c * 8u / V_GROUP : 0u;
					const uint of = quad_scales_s[quad].x, more = quad_scales_s[quad].y;
					params_at(of + run * (V_BYTES ? PAGE / 2u : PAGE), more, scale, zero);
					const bvec4 dead =
					    equal(uvec4(v_live) & uvec4(1, 2, 4, 8), uvec4(0)); // their parameters may be anything
					scale = mix(scale, vec4(0), dead);
					zero = mix(zero, vec4(0), dead);
					if (V_NORM) {
						const uvec4 x = v_factors[more / 4u + c];
						factor_low = halves_low(x);
						factor_high = halves_high(x);
					}
				}
#endif
				[[unroll]] for (uint t = 0; t < 4u; t++) {
					vec4 low, high;
					decode_v(v[a][o * 4u + t], c, 0u - (v_live >> t & 1u), low, high);
#ifdef V_PARAMS
					if (V_SCALED) {
						low = low * scale[t] + zero[t];
						high = high * scale[t] + zero[t];
					}
					if (V_NORM) {
						low *= factor_low;
						high *= factor_high;
					}
#endif
					[[unroll]] for (uint j = 0; j < QUERIES; j++) {
						const float x = work_s[j * QUADS + quad][t];
						acc[(j * OWN + o) * 2u] += x * low;
						acc[(j * OWN + o) * 2u + 1u] += x * high;
					}
				}
			}
		}
	}
	barrier(); // the next tile writes work_s
}

// Of a whole tile.
void tile_values(uint at, uint live, uint params, uint more) { tile_values(at, live, params, more, QUADS); }

// Memory where the sums of all rows meet.
#ifdef INT8
#define SUM(i) (V_DOT ? uintBitsToFloat(dot_s[i]) : work_s[i])
#define SUM_SET(i, x) if (V_DOT) dot_s[i] = floatBitsToUint(x); else work_s[i] = x
const uint SUM_PIECES = V_DOT ? SUMS_DOT : WORK;
#else
#define SUM(i) work_s[i]
#define SUM_SET(i, x) work_s[i] = x
const uint SUM_PIECES = WORK;
#endif
const uint CHUNK_SUMS = QUERIES * OWN, ROOM_FOR = SUM_PIECES >= 2u * LOCAL_X ? SUM_PIECES / (2u * LOCAL_X) : 1u;
const uint TOGETHER = ROOM_FOR < CHUNK_SUMS ? ROOM_FOR : CHUNK_SUMS;          // chunks of a lane that are added at once
const uint BATCHES = V_ROWS > 1u ? (CHUNK_SUMS + TOGETHER - 1u) / TOGETHER : 0u;
const uint ROW_SHARE = (TOGETHER + V_ROWS - 1u) / V_ROWS;                     // of these, what a row adds

// Sums over lanes: afterwards total is complete everywhere, acc in the lanes of row 0. Rows share the chunks, and each
// chunk's sums are added in the order of rows. Batches are as large as the memory, so that lanes wait for each other
// as rarely as can be. All counts are constants: with others NVK would keep acc in memory.
void state_finish() {
	reduce_own(total, false);
	const uint row = LANE / ROW_LANES;
#ifdef INT8
	if (V_DOT_ZEROS)
		[[unroll]] for (uint i = 0; i < QUERIES * OWN * 2u; i++) acc[i] *= step_unit(i % 2u * 4u);
#endif
	if (V_ZEROS)
		[[unroll]] for (uint i = 0; i < QUERIES * OWN; i++) {
			acc[i * 2u] += zero_acc[i];
			acc[i * 2u + 1u] += zero_acc[i];
		}
	[[unroll]] for (uint b = 0; b < BATCHES; b++) {
		[[unroll]] for (uint k = 0; k < TOGETHER; k++)
			if (b * TOGETHER + k < CHUNK_SUMS) {
				SUM_SET(k * 2u * LOCAL_X + LANE, acc[(b * TOGETHER + k) * 2u]);
				SUM_SET((k * 2u + 1u) * LOCAL_X + LANE, acc[(b * TOGETHER + k) * 2u + 1u]);
			}
		barrier();
		[[unroll]] for (uint s = 0; s < ROW_SHARE; s++) {
			const uint k = s * V_ROWS + row, at = k * 2u * LOCAL_X + LANE % ROW_LANES;
			if (row < V_ROWS && k < TOGETHER && b * TOGETHER + k < CHUNK_SUMS) {
				vec4 low = SUM(at), high = SUM(at + LOCAL_X);
				[[unroll]] for (uint r = 1; r < V_ROWS; r++) {
					low += SUM(at + r * ROW_LANES);
					high += SUM(at + r * ROW_LANES + LOCAL_X);
				}
				SUM_SET(at, low);
				SUM_SET(at + LOCAL_X, high);
			}
		}
		barrier();
		[[unroll]] for (uint k = 0; k < TOGETHER; k++)
			if (b * TOGETHER + k < CHUNK_SUMS) {
				acc[(b * TOGETHER + k) * 2u] = SUM(k * 2u * LOCAL_X + LANE);
				acc[(b * TOGETHER + k) * 2u + 1u] = SUM((k * 2u + 1u) * LOCAL_X + LANE);
			}
	}
}
// After state_finish(): undoes the rotation of values.
void values_rotate_back() {
	const uint chunk = LANE % ROW_LANES;
	const bool writes = LANE / ROW_LANES == 0u;
	barrier();
	[[unroll]] for (uint j = 0; j < QUERIES; j++)
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = chunk + o * ROW_LANES;
			if (!writes || c >= CHUNKS) continue;
			q_s[j * Q_PIECES + c * 2u] = acc[(j * OWN + o) * 2u];
			q_s[j * Q_PIECES + c * 2u + 1u] = acc[(j * OWN + o) * 2u + 1u];
		}
	barrier();
	rotate_staged(STAGED_PIECES, true);
	[[unroll]] for (uint j = 0; j < QUERIES; j++)
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = min(chunk + o * ROW_LANES, CHUNKS - 1u);
			acc[(j * OWN + o) * 2u] = q_s[j * Q_PIECES + c * 2u];
			acc[(j * OWN + o) * 2u + 1u] = q_s[j * Q_PIECES + c * 2u + 1u];
		}
}
