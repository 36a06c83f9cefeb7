// Online softmax over tiles of tokens, and the weighted sum of V: shared by texel/attend.comp and
// texel/attend_prompt.comp.
//
// A workgroup serves QUERIES queries that read the same keys and values. It takes tokens in tiles; a lane owns a quad
// (4 consecutive tokens) of a tile while it works on keys, and 8 channels of every V_ROWS-th quad while it sums values.
// Packed V without channel factors costs no more than f16: in sum_t w_t (scale_t code_t + zero_t), codes are multiplied
// by w_t scale_t, computed once per token and run of channels, and sum_t w_t zero_t is summed separately.
//
// The workgroup is one subgroup. Large buffers are read as texels, because these drivers load storage buffers an order
// of magnitude slower. Weights pass between lanes by shuffles.
//
// The including file defines LOCAL_X, SUBGROUP, HEAD_DIM, PAGE, QUERIES, V_BITS, V_GROUP, V_NORM, declares q, v_codes
// and, for packed V, V_BOOK, V_BYTES, v_params, v_factors, and supplies:
//   uint query_at(uint j)           first 16-byte piece of query j in q; any valid one where there is no query j
//   void queries_fit(uint c)        makes q_part, channels 4 c .. 4 c + 3 of queries, what the keys want;
//                                   c differs from lane to lane
#include "texel/queries.glsl"
#include "lib/no_token.glsl"
#include "lib/pieces.glsl"

const uint CHUNKS = HEAD_DIM / 8u;                                  // pieces of a V row that a lane takes at once
const uint ROW_LANES = CHUNKS < LOCAL_X ? CHUNKS : LOCAL_X;
const uint V_ROWS = LOCAL_X / ROW_LANES;                            // V rows read side by side
const uint OWN = (CHUNKS + ROW_LANES - 1u) / ROW_LANES;             // chunks of a lane
const bool V_FOLD = V_BITS < 16u && !V_NORM;                        // scales are in the weights
const uint V_RUNS = V_FOLD && V_GROUP < HEAD_DIM ? HEAD_DIM / V_GROUP : 1u; // sets of weights
const uint V_LOW = (HEAD_DIM * 2u + 31u) / 32u;                     // words of the low plane of 3-bit codes
const uint V_STRIDE = V_BITS == 16u  ? HEAD_DIM / 8u                // token to token: pieces, words
					  : V_BITS == 3u ? V_LOW + (HEAD_DIM + 31u) / 32u
									 : (HEAD_DIM * V_BITS + 31u) / 32u;

vec4 acc[QUERIES * OWN * 2u];     // [query][own chunk][half]: sum of weight * value
vec4 weight[V_RUNS * QUERIES];    // [run][query] of the lane's quad
float zeros[V_RUNS * QUERIES];    // sum over the quad of weight * zero; unused where scales are not in the weights
float top[QUERIES];               // maximum score so far, the same in all lanes
float total[QUERIES];             // sum of weights; only this lane's share until state_finish()
float zero_acc[QUERIES * OWN];    // [query][own chunk] sum of weight * zero, for all channels of the chunk

void state_clear() {
	[[unroll]] for (uint i = 0; i < QUERIES * OWN * 2u; i++) acc[i] = vec4(0);
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		top[j] = NO_TOKEN;
		total[j] = 0;
	}
	[[unroll]] for (uint i = 0; i < QUERIES * OWN; i++) zero_acc[i] = 0;
}

// ---- a tile

// Turns scores (NO_TOKEN where a query does not see a token) into weights, and rescales earlier sums. Bit i of `live`:
// token i of the lane's quad is live; `params`: word of v_params where the quad's first run begins, or its norms;
// `largest`: word of the largest norm.
void tile_softmax(uint live, uint params, uint largest) {
	float tile[QUERIES];
	[[unroll]] for (uint j = 0; j < QUERIES; j++)
		tile[j] = max(max(score[j].x, score[j].y), max(score[j].z, score[j].w));
	reduce(tile, true);
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		const float now = max(top[j], tile[j]), base = now == NO_TOKEN ? 0.0 : now;
		// Exactly 1 where the tile changes nothing, so that a row's result does not depend on tiles it sees nothing of.
		const float shrink = now == top[j] ? 1.0 : exp(top[j] - base);
		top[j] = now;
		score[j] = exp(score[j] - base);
		total[j] = total[j] * shrink + (score[j].x + score[j].y + score[j].z + score[j].w);
		[[unroll]] for (uint i = 0; i < OWN * 2u; i++) acc[j * OWN * 2u + i] *= shrink;
		if (V_FOLD)
			[[unroll]] for (uint o = 0; o < OWN; o++) zero_acc[j * OWN + o] *= shrink;
	}
	if (!V_FOLD)
		[[unroll]] for (uint j = 0; j < QUERIES; j++) weight[j] = score[j];
#ifdef V_PARAMS
	if (V_FOLD) {
		const bvec4 dead = equal(uvec4(live) & uvec4(1, 2, 4, 8), uvec4(0)); // their parameters may be anything
		[[unroll]] for (uint r = 0; r < V_RUNS; r++) {
			vec4 scale, zero = vec4(0);
			if (!V_BOOK && V_BYTES) {
				const uint at = params + r * (PAGE / 2u);
				const uvec4 w = LOAD4(v_params, at / 4u);
				byte_params_of((at & 2u) == 0u ? w.xy : w.zw, LOAD_WORD(v_params, largest), scale, zero);
			} else if (!V_BOOK) params_of(LOAD4(v_params, (params + r * PAGE) / 4u), scale, zero);
			else if (V_BYTES) scale = norms_of_bytes(LOAD_WORD(v_params, params), LOAD_WORD(v_params, largest));
			else scale = norms_of_halves(LOAD_WORD(v_params, params), LOAD_WORD(v_params, params + 1u));
			scale = mix(scale, vec4(0), dead);
			zero = mix(zero, vec4(0), dead);
			[[unroll]] for (uint j = 0; j < QUERIES; j++) {
				weight[r * QUERIES + j] = score[j] * scale;
				zeros[r * QUERIES + j] = dot(score[j], zero);
			}
		}
	}
#endif
}

// 8 channels of a V row as floats: of f16 values at piece `at`, or codes at word `at`; chunk c begins at `at`. A row
// that is not live (mask 0, else ~0) gives zeros, whatever the memory holds.
void load_v(uint at, uint c, uint mask, out vec4 low, out vec4 high) {
#ifdef V_PARAMS
	if (V_BITS < 16u) {
		const uint bits = V_BITS == 3u ? 2u : V_BITS, word = at + c * bits / 4u;
		const uvec4 x = LOAD4(v_codes, word / 4u);
		const uint w2 = V_BITS == 3u ? LOAD_WORD(v_codes, at + V_LOW + c / 4u) : word_of(x, word | 1u);
		piece_codes(word_of(x, word), w2, c, V_BITS, mask, low, high);
		if (V_BOOK) {
			low = book_values(low, V_BITS);
			high = book_values(high, V_BITS);
		}
		return;
	}
#endif
	const uvec4 w = LOAD4(v_codes, at + c) & uvec4(mask);
	low = halves_low(w);
	high = halves_high(w);
}

// Adds the values of the tile. Of the lane's quad: `at`, where its V begins (16-byte pieces; words if V is packed),
// always inside the buffer; bit i of `live`: token i has values; `params`, only with V_NORM, as in tile_softmax();
// `factors`, only with V_NORM: the word of v_factors where the channel factors of the kv head begin.
void tile_values(uint at, uint live, uint params, uint factors) {
	const uint row = LANE / ROW_LANES, chunk = LANE % ROW_LANES;
	for (uint i = 0; i < (QUADS + V_ROWS - 1u) / V_ROWS; i++) {
		const uint quad = min(i * V_ROWS + row, QUADS - 1u);
		const uint v_at = subgroupShuffle(at, quad);
		uint v_live = subgroupShuffle(live, quad);
		if (i * V_ROWS + row >= QUADS || row >= V_ROWS) v_live = 0;
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = min(chunk + o * ROW_LANES, CHUNKS - 1u), run = V_RUNS == 1u ? 0u : c * 8u / V_GROUP;
			vec4 u[QUERIES]; // weights of the run that c is in
			float z[QUERIES];
			[[unroll]] for (uint r = 0; r < V_RUNS; r++) if (V_RUNS == 1u || (r * V_GROUP < (o + 1u) * ROW_LANES * 8u &&
			                                                                  (r + 1u) * V_GROUP > o * ROW_LANES * 8u))
			    [[unroll]] for (uint j = 0; j < QUERIES; j++) {
				const vec4 other = subgroupShuffle(weight[r * QUERIES + j], quad);
				u[j] = r == 0u || run == r ? other : u[j];
				if (V_FOLD) {
					const float other_z = subgroupShuffle(zeros[r * QUERIES + j], quad);
					z[j] = r == 0u || run == r ? other_z : z[j];
				}
			}
			if (V_FOLD)
				[[unroll]] for (uint j = 0; j < QUERIES; j++) zero_acc[j * OWN + o] += v_live != 0u ? z[j] : 0.0;
#ifdef V_PARAMS
			vec4 scale, zero, factor_low, factor_high;
			if (V_NORM) {
				const uint of = subgroupShuffle(params, quad), f = subgroupShuffle(factors, quad);
				const uint norm_run = V_GROUP < HEAD_DIM ? c * 8u / V_GROUP : 0u;
				params_of(LOAD4(v_params, (of + norm_run * PAGE) / 4u), scale, zero);
				const uvec4 x = LOAD4(v_factors, f / 4u + c);
				factor_low = halves_low(x);
				factor_high = halves_high(x);
			}
#endif
			[[unroll]] for (uint t = 0; t < 4u; t++) {
				// A token that is not live may lie outside the buffer, or hold anything, infinities included.
				const uint mask = 0u - (v_live >> t & 1u);
				vec4 low, high;
				load_v(v_at + (t * V_STRIDE & mask), c, mask, low, high);
#ifdef V_PARAMS
				if (V_NORM) {
					low = mask != 0u ? (low * scale[t] + zero[t]) * factor_low : vec4(0);
					high = mask != 0u ? (high * scale[t] + zero[t]) * factor_high : vec4(0);
				}
#endif
				[[unroll]] for (uint j = 0; j < QUERIES; j++) {
					const float x = u[j][t];
					acc[(j * OWN + o) * 2u] += x * low;
					acc[(j * OWN + o) * 2u + 1u] += x * high;
				}
			}
		}
	}
}

// Sums over lanes: afterwards total is complete everywhere, acc in the lanes of row 0.
void state_finish() {
	reduce(total, false);
	const uint row = LANE / ROW_LANES;
	if (V_FOLD)
		[[unroll]] for (uint i = 0; i < QUERIES * OWN; i++) {
			acc[i * 2u] += zero_acc[i];
			acc[i * 2u + 1u] += zero_acc[i];
		}
	if (V_ROWS > 1u) [[unroll]] for (uint i = 0; i < QUERIES * OWN; i++) {
		vec4 low = acc[i * 2u], high = acc[i * 2u + 1u];
		[[unroll]] for (uint r = 1; r < V_ROWS; r++) {
			const uint from = (LANE + r * ROW_LANES) % LOCAL_X;
			acc[i * 2u] += subgroupShuffle(low, from);
			acc[i * 2u + 1u] += subgroupShuffle(high, from);
		}
	}
}
// A stage of the Hadamard transform of query j's sums, between chunks `step` apart.
void chunks_butterfly(const uint j, const uint step) {
	[[unroll]] for (uint i = 0; i < OWN * 2u; i++) {
		const uint at = j * OWN * 2u + i;
		if (step < ROW_LANES) {
			const vec4 other = vec4(subgroupShuffleXor(acc[at].x, step), subgroupShuffleXor(acc[at].y, step),
									subgroupShuffleXor(acc[at].z, step), subgroupShuffleXor(acc[at].w, step));
			acc[at] = (LANE % ROW_LANES & step) == 0u ? acc[at] + other : other - acc[at];
		} else if ((i / 2u & (step / ROW_LANES)) == 0u) {
			const uint far = min(at + step / ROW_LANES * 2u, QUERIES * OWN * 2u - 1u);
			const vec4 a = acc[at], b = acc[far];
			acc[at] = a + b;
			acc[far] = a - b;
		}
	}
}
// After state_finish(): undoes the rotation of values. Chunks are exchanged between lanes, or within a lane.
void values_rotate_back() {
	const uint block = kv_rotation_block(HEAD_DIM);
	uint signs[OWN]; // a bit per channel of the lane: hashing the channels for every query would cost as much as a page
	[[unroll]] for (uint o = 0; o < OWN; o++) {
		signs[o] = 0;
		[[unroll]] for (uint c = 0; c < 8u; c++)
			signs[o] |= uint(kv_sign((LANE % ROW_LANES + o * ROW_LANES) * 8u + c)) << c;
	}
	// With loops that multiply their counter, or `continue`, the compiler would not unroll and acc would be in memory:
	// a page would take three times as long.
	[[unroll]] for (uint i = 0; i < QUERIES * OWN; i++) {
		const vec4 a = hadamard4(acc[i * 2u]), b = hadamard4(acc[i * 2u + 1u]);
		acc[i * 2u] = a + b;
		acc[i * 2u + 1u] = a - b;
	}
	[[unroll]] for (uint j = 0; j < QUERIES; j++)
		[[unroll]] for (uint bit = 0; bit < 6u; bit++)
			if (1u << bit < block / 8u) chunks_butterfly(j, 1u << bit);
	[[unroll]] for (uint i = 0; i < QUERIES * OWN * 2u; i++) {
		const uvec4 sign = (uvec4(signs[i / 2u % OWN] >> i % 2u * 4u) >> uvec4(0, 1, 2, 3)) << 31u;
		acc[i] = uintBitsToFloat(floatBitsToUint(acc[i] * kv_rotation_scale(block)) ^ sign);
	}
}
