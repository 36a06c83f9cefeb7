// The weighted sum of packed V by integer dot products, with weights rounded to 8 bits. Does what tile_values() of
// lib/attend.glsl does.
//
//   sum_t w_t (scale_t L_t + zero_t) = unit sum_t b_t L_t + rest,  b_t = round(w_t scale_t / unit)
//   rest = sum_t w_t (zero_t + middle scale_t) - middle unit sum_t b_t
// over blocks of 4 BLOCK_QUADS tokens. Each block has its own unit, its largest w_t scale_t / 255, so a large weight
// reduces only its neighbours' precision. Tokens whose rounded weight is 0 count as the middle of the codes, so no
// weight is lost.
// Codebooks: rest = -middle sum_t unit b_t, and both are multiplied by dot_unit().
//
// A dot product is over 4 tokens of one channel, so codes of 4 tokens are transposed. This is cheapest before the codes
// become bytes, and in two steps. It leaves tokens in the order 0, 2, 1, 3, so the weights have this order too.
const uint V_PLAIN = V_BITS == 3u ? 2u : V_BITS;
const uint V_CHUNK_BYTES = V_DOT ? V_PLAIN : 1u;           // bytes of a token's (low) codes of 8 channels
const uint V_STEPS = 8u / V_CHUNK_BYTES;                   // codes in a byte
// Quads of tokens whose weights share a unit. With 8, half as many sums are converted to floats as with 4; but codes of
// 3 bits, which have two planes, would spill registers. Must not depend on QUERIES, because a row's bits depend on it.
const uint SHARED_QUADS = (SUBGROUP < LOCAL_X ? SUBGROUP : LOCAL_X) / QUAD_LANES;
const uint BLOCK_QUADS = V_BITS == 3u ? 4u : HEAD_DIM < 64u ? 4u : SHARED_QUADS < 8u ? 4u : 8u;
const uint BLOCKS = QUADS / BLOCK_QUADS; // blocks of a tile
const uint PART = QUERIES > 4u ? 4u : QUERIES;             // queries whose sums are in registers together
const uint PART_SUMS = PART * 8u;
// Quads whose codes are loaded together: fewer take fewer registers. With all parts of a block together, the compiler
// overlaps them.
const bool V_AHEAD = (FLAGS & ATTEND_LOAD_AHEAD) != 0u;
const uint PART_QUADS = V_AHEAD || !BY_FOUR ? 4u : V_BITS == 3u ? 1u : 2u;
const bool PARTS_TOGETHER = V_AHEAD || !BY_FOUR;
shared vec2 block_s[V_DOT ? QUERIES * V_RUNS * BLOCKS : 1u]; // [query][run][block] unit, rest
shared uvec2 block_at_s[V_DOT ? BLOCKS : 1u];                // as in tile_values_dot()

// Uniform codes are not shifted to the bottom of their byte; their sums are larger by that power of two.
const bool V_IN_PLACE = !V_BOOK && V_BITS != 3u;
vec4 step_unit(uint k) {
	vec4 x;
	[[unroll]] for (uint i = 0; i < 4u; i++) x[i] = V_IN_PLACE ? 1.0 / float(1u << (k + i) % V_STEPS * V_PLAIN) : 1.0;
	return x;
}

// Before Hopper, NVIDIA's multiprocessors issue 64 dot products but 16 conversions to float in a cycle. There, sums
// start from the bits of the float 2^23, so that their bits are those of 2^23 + sum. Elsewhere a conversion costs no
// more than the subtraction.
const bool SUM_ABOVE = (FLAGS & ATTEND_SLOW_CONVERT) != 0u;
const float ABOVE = 8388608.0;
float sum_value(uint x) { return SUM_ABOVE ? uintBitsToFloat(x) - ABOVE : float(x); }

float block_max(float x) { // over the lanes of a block that own the same queries
	[[unroll]] for (uint by = QUAD_LANES; by < BLOCK_QUADS * QUAD_LANES; by *= 2u)
		x = max(x, subgroupShuffleXor(x, by));
	return x;
}
float block_sum(float x) {
	[[unroll]] for (uint by = QUAD_LANES; by < BLOCK_QUADS * QUAD_LANES; by *= 2u) x += subgroupShuffleXor(x, by);
	return x;
}

// Rounds the weights of the lane's quad, score[]; parameters as for tile_softmax().
void round_weights(uint live, uint params, uint largest) {
	const float middle = dot_middle(V_BITS, V_BOOK);
	[[unroll]] for (uint r = 0; r < V_RUNS; r++) {
		vec4 scale, zero;
		params_of_weights(live, params + r * (V_BYTES ? PAGE / 2u : PAGE), largest, scale, zero);
		zero += middle * scale;
		[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) {
			const vec4 x = score[m] * scale;
			const float most = max(block_max(max(max(x.x, x.y), max(x.z, x.w))), 1e-30), unit = most * (1.0 / 255.0);
			const uint b = pack_bytes(round_above(x.xzyw, 255.0 / most, 0.0));
			float rest = -middle * unit * float(dot_bytes(b, 0x01010101u, 0));
			if (!V_BOOK)
				[[unroll]] for (uint t = 0; t < 4u; t++) rest += score[m][t] * zero[t];
			rest = block_sum(rest);
			const uint of_query = own_query(m) * V_RUNS + r, first = m * QUAD_LANES; // own_query(m) is first + HALF
			if (BY_FOUR)
				dot_s[WEIGHTS_AT + (r * RUN_QUADS + QUAD) * (QUERIES / 4u) + first / 4u][first % 4u + HALF] = b;
			else
				dot_s[WEIGHTS_AT + of_query * (QUADS / 4u) + QUAD / 4u][QUAD % 4u] = b;
			if (QUAD % BLOCK_QUADS == 0u)
				block_s[of_query * BLOCKS + QUAD / BLOCK_QUADS] = vec2(unit, rest) * dot_unit(V_BITS, V_BOOK);
		}
	}
}

// a, b: words of bytes of tokens 0, 2, 1, 3; from x, 2 bytes of tokens 0 and 1, and y, the same bytes of tokens 2 and
// 3.
void interleave(uint x, uint y, out uint a, out uint b) {
	a = (x & 0x00ff00ffu) | (y & 0x00ff00ffu) << 8u;
	b = (x >> 8u & 0x00ff00ffu) | (y & 0xff00ff00u);
}
// Codes of chunk c of 4 tokens, whose words are w, transposed: output word i has byte i of each token.
void transpose_codes(uvec4 w, uint c, out uint bytes[V_CHUNK_BYTES]) {
	if (V_CHUNK_BYTES == 1u) {
		bytes[0] = transpose_bytes(w, c);
		return;
	}
	if (V_CHUNK_BYTES == 2u) w = w >> c % 2u * 16u;
	interleave((w.x & 0xffffu) | w.y << 16u, (w.z & 0xffffu) | w.w << 16u, bytes[0], bytes[V_CHUNK_BYTES > 1u ? 1 : 0]);
	if (V_CHUNK_BYTES == 4u)
		interleave(w.x >> 16u | (w.y & 0xffff0000u), w.z >> 16u | (w.w & 0xffff0000u),
		           bytes[V_CHUNK_BYTES == 4u ? 2 : 0], bytes[V_CHUNK_BYTES == 4u ? 3 : 0]);
}

// Every lane has a block in each round; otherwise some lanes repeat a block with weights of 0.
const bool ROUNDS_FULL = BLOCKS % V_ROWS == 0u && V_ROWS * ROW_LANES == LOCAL_X;

// Codes of PART_QUADS quads, the first at word `at` of V: w[n][t] has those of chunk c and token 4 n + t, w2 the high
// bits of 3-bit codes.
void load_codes(uint at, uint c, out uvec4 w[PART_QUADS], out uvec4 w2[PART_QUADS]) {
	[[unroll]] for (uint n = 0; n < PART_QUADS; n++)
		[[unroll]] for (uint t = 0; t < 4u; t++) {
			const uint token = at + (n * 4u + t) * V_STRIDE;
			w[n][t] = v_words[token + piece_word(c, V_BITS)];
			w2[n][t] = V_BITS == 3u ? v_words[token + piece_word2(c, V_BITS)] : 0u;
		}
}

// Adds a part of a block, whose first token's codes are at word `at`: chunk c, in run `run`, for queries first ..
// first + PART - 1.
void add_part(uint at, uint part, uint c, uint run, uint block, uint first, inout uint sums[PART_SUMS]) {
	uvec4 w[PART_QUADS], w2[PART_QUADS], weights[PART]; // weights by query; with BY_FOUR, weights[0] by quad
	load_codes(at + part * (4u * PART_QUADS) * V_STRIDE, c, w, w2);
	if (!BY_FOUR)
		[[unroll]] for (uint j = 0; j < PART; j++) weights[j] =
		    dot_s[WEIGHTS_AT +
		          ((min(first + j, QUERIES - 1u) * V_RUNS + run) * BLOCKS + block) * (BLOCK_QUADS / 4u) + part];
	[[unroll]] for (uint n = 0; n < PART_QUADS; n++) {
		const uint quad = block * BLOCK_QUADS + part * PART_QUADS + n;
		if (BY_FOUR) weights[0] = dot_s[WEIGHTS_AT + ((run * RUN_QUADS + quad) * QUERIES + first) / 4u];
		uint bytes[V_CHUNK_BYTES];
		transpose_codes(w[n], c, bytes);
		const uint high = V_BITS == 3u ? transpose_bytes(w2[n], c) : 0u;
		[[unroll]] for (uint k = 0; k < 8u; k++) {
			const uint v = V_IN_PLACE ? bytes[k / V_STEPS] & (0x01010101u * ((1u << V_PLAIN) - 1u))
			                                                     << k % V_STEPS * V_PLAIN
			                          : code_bytes(bytes[k / V_STEPS] >> k % V_STEPS * V_PLAIN, high >> k, V_BITS,
			                                       V_BOOK);
			[[unroll]] for (uint j = 0; j < PART; j++) sums[j * 8u + k] +=
			    dot_bytes(BY_FOUR ? weights[0][j % 4u] : weights[j][n], v, 0);
		}
	}
}

// Adds the values of the tile, after round_weights(). `at`: word of V where the lane's quad begins; `factors`: word of
// v_factors where the channel factors of the kv head begin.
void tile_values_dot(uint at, uint factors) {
	if (LANE % (BLOCK_QUADS * QUAD_LANES) == 0u) block_at_s[QUAD / BLOCK_QUADS] = uvec2(at, factors);
	barrier();
	const uint row = LANE / ROW_LANES, chunk = LANE % ROW_LANES;
	[[dont_unroll]] for (uint i = 0; i < (BLOCKS + V_ROWS - 1u) / V_ROWS; i++) {
		const uint block = ROUNDS_FULL ? i * V_ROWS + row : min(i * V_ROWS + row, BLOCKS - 1u);
		const bool mine = ROUNDS_FULL || (i * V_ROWS + row < BLOCKS && row < V_ROWS);
		const uvec2 block_at = block_at_s[block];
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = min(chunk + o * ROW_LANES, CHUNKS - 1u), run = V_RUNS > 1u ? c * 8u / V_GROUP : 0u;
			vec4 factor_low = vec4(1), factor_high = vec4(1);
			if (V_NORM) {
				const uvec4 x = v_factors[block_at.y / 4u + c];
				factor_low = halves_low(x);
				factor_high = halves_high(x);
			}
			[[unroll]] for (uint first = 0; first < QUERIES; first += PART) {
				uint sums[PART_SUMS];
				[[unroll]] for (uint k = 0; k < PART_SUMS; k++) sums[k] = SUM_ABOVE ? floatBitsToUint(ABOVE) : 0u;
				if (PARTS_TOGETHER)
					[[unroll]] for (uint part = 0; part < BLOCK_QUADS / PART_QUADS; part++)
						add_part(block_at.x, part, c, run, block, first, sums);
				else
					[[dont_unroll]] for (uint part = 0; part < BLOCK_QUADS / PART_QUADS; part++)
						add_part(block_at.x, part, c, run, block, first, sums);
				[[unroll]] for (uint j = 0; j < PART; j++) {
					if (first + j >= QUERIES) continue;
					const vec2 x = block_s[((first + j) * V_RUNS + run) * BLOCKS + block];
					const float unit = mine ? x.x : 0.0, rest = mine ? x.y : 0.0;
					vec4 low, high;
					[[unroll]] for (uint k = 0; k < 4u; k++) {
						low[k] = sum_value(sums[j * 8u + k]);
						high[k] = sum_value(sums[j * 8u + 4u + k]);
					}
					const uint to = (first + j) * OWN + o;
					if (V_NORM) {
						acc[to * 2u] += (low * (unit * step_unit(0u)) + rest) * factor_low;
						acc[to * 2u + 1u] += (high * (unit * step_unit(4u)) + rest) * factor_high;
					} else { // state_finish() multiplies by step_unit()
						acc[to * 2u] += low * unit;
						acc[to * 2u + 1u] += high * unit;
						zero_acc[to] += rest;
					}
				}
			}
		}
	}
	barrier(); // the next tile overwrites what this one reads
}
