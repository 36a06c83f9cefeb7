// Scores by integer dot products: queries are rounded to 8 bits (with 4-bit keys to 16), codes are expanded to bytes.
//
//   q . k = unit (sum_c b_c L_c) scale + ...,  b_c = round(q_c / unit), unit = max_c |q_c| / 127 (or 32512)
// The middle of the codes meets queries that are not rounded: middle sum_c (q_c - unit b_c) is added, once per page or
// run of channels. So the error of rounding is in proportion to how far codes are from their middle: with 2 bits 0.03
// max |q_c|, where the codes themselves have an error of 3.3 times the rms of q_c (both times the scale, per token, 128
// channels).
// K per channel: scales are multiplied into queries before rounding, for each page; otherwise queries are rounded once.
//
// Included by lib/keys.glsl, whose constants and functions it uses; dot_s.
const uint K_PLAIN = K_BITS == 3u ? 2u : K_BITS;
const uint K_WORDS = (HEAD_DIM * K_PLAIN + 31u) / 32u;        // words of a token's (low) codes
const uint K_GROUPS = K_WORDS * K_STEPS;                      // words of bytes, 4 channels each
const uint WORD_PIECES = K_STEPS * K_PLANES / 4u;             // 16-byte pieces of a query that match a word of codes
const uint PIECE_STEPS = 4u / K_PLANES;
const uint RUN_WORDS = K_WORDS / K_RUNS;                      // words of a run of channels with one scale
const bool K_AHEAD = (FLAGS & ATTEND_LOAD_AHEAD) != 0u;       // words are loaded while the previous ones are multiplied
const uint K_MOST = K_BITS != 3u ? 2u : K_AHEAD ? 2u : 1u;    // words loaded together: they cost registers
const uint K_BATCH = RUN_WORDS < K_MOST ? RUN_WORDS : K_MOST;
const uint OWN_GROUPS = (K_GROUPS + SLOT_LANES - 1u) / SLOT_LANES; // groups of a lane
const bool GROUPS_FULL = K_GROUPS % SLOT_LANES == 0u;
const float LEAST = 1e-30;                                     // of the largest |query|: its inverse is finite
const bool Q_HELD = OWN_GROUPS * QUERIES <= 8u;               // scaled queries of a page stay in registers
const bool Q_SORTED = K_CHANNEL && K_GROUPS == Q_PIECES;      // pieces of q_s are in the order of words of bytes
// (unit, rest) [page of the tile, or run of channels][query]: a score is unit * dots + rest, times the scale of the
// token and run if there is one. In shared memory, because registers limit how many keys are multiplied at a time.
shared vec2 units_s[K_DOT ? (K_CHANNEL ? TILE_PAGES : K_RUNS) * QUERIES : 1u];

float q_most() { return K_PLANES == 2u ? 32512.0 : 127.0; } // largest rounded query

// Channels of word g of bytes; 0 past the last.
vec4 group_of_query(uint j, uint g) {
	const uint c = g / K_STEPS * (4u * K_STEPS) + g % K_STEPS;
	vec4 x;
	[[unroll]] for (uint b = 0; b < 4u; b++) {
		const uint at = c + b * K_STEPS;
		x[b] = at < HEAD_DIM ? q_s[j * Q_PIECES + min(at, HEAD_DIM - 1u) / 4u][at % 4u] : 0.0;
	}
	return x;
}
// x / unit, rounded, as bytes: `low`, and with two planes `high`. Returns the sum of the rounded numbers.
int round_group(vec4 x, float inverse, out uint high, out uint low) {
	const uvec4 b = round_above(x, inverse, K_PLANES == 2u ? 32896.0 : 128.0); // high byte + 128, low byte + 128
	low = pack_bytes(b) ^ 0x80808080u;
	high = pack_bytes(b >> 8u) ^ 0x80808080u;
	const int sum = dot_bytes(int(low), 0x01010101, 0);
	return K_PLANES == 2u ? sum + dot_bytes(int(high), 0x01010101, 0) * 256 : sum;
}
// Writes word g of all queries of staged page n.
void put_queries(uint n, uint g, uint high[QUERIES], uint low[QUERIES]) {
	const uint word = g / K_STEPS * (K_STEPS * K_PLANES) + g % K_STEPS, page = n * QUERIES * Q8_PIECES;
	if (BY_FOUR) {
		[[unroll]] for (uint j = 0; j < QUERIES; j += 4u) {
			const uint at = page + word * (QUERIES / 4u) + j / 4u, next = K_STEPS * (QUERIES / 4u);
			const uvec4 first = uvec4(low[j], low[j + 1u], low[j + 2u], low[j + 3u]);
			dot_s[at] = K_PLANES == 2u ? uvec4(high[j], high[j + 1u], high[j + 2u], high[j + 3u]) : first;
			if (K_PLANES == 2u) dot_s[at + next] = first;
		}
		return;
	}
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		const uint at = (page + j * Q8_PIECES) * 4u + word;
		dot_s[at / 4u][at % 4u] = K_PLANES == 2u ? high[j] : low[j];
		if (K_PLANES == 2u) dot_s[(at + K_STEPS) / 4u][(at + K_STEPS) % 4u] = low[j];
	}
}

// For keys with a scale per channel, before the first tile: sorts channels as group_of_query() would have to collect
// them for every page.
void sort_queries() {
	const uint n = (QUERIES * Q_PIECES + LOCAL_X - 1u) / LOCAL_X;
	vec4 x[n];
	[[unroll]] for (uint i = 0; i < n; i++) {
		const uint at = min(LANE + i * LOCAL_X, QUERIES * Q_PIECES - 1u);
		x[i] = group_of_query(at / Q_PIECES, at % Q_PIECES);
	}
	barrier();
	[[unroll]] for (uint i = 0; i < n; i++)
		if (LANE + i * LOCAL_X < QUERIES * Q_PIECES) q_s[LANE + i * LOCAL_X] = x[i];
	barrier();
}
// For other keys, before the first tile: rounds the queries.
void round_queries() {
	float most[QUERIES];
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		most[j] = 0;
		for (uint i = LANE; i < Q_PIECES; i += LOCAL_X) {
			const vec4 x = abs(q_s[j * Q_PIECES + i]);
			most[j] = max(most[j], max(max(x.x, x.y), max(x.z, x.w)));
		}
	}
	reduce(most, true);
	[[unroll]] for (uint j = 0; j < QUERIES; j++) most[j] = max(most[j], LEAST);
	const uint run_groups = K_GROUPS / K_RUNS;
	const float middle = dot_middle(K_BITS, K_BOOK);
	[[dont_unroll]] for (uint r = 0; r < K_RUNS; r++) {
		float rest[QUERIES];
		[[unroll]] for (uint j = 0; j < QUERIES; j++) rest[j] = 0;
		for (uint i = LANE; i < run_groups; i += LOCAL_X) {
			uint high[QUERIES], low[QUERIES];
			[[unroll]] for (uint j = 0; j < QUERIES; j++) {
				const vec4 x = group_of_query(j, r * run_groups + i);
				const int sum = round_group(x, q_most() / most[j], high[j], low[j]);
				// The middle of a codebook's values is 0; of uniform codes it is middle * scale + zero.
				rest[j] +=
				    (K_BOOK ? 0.0 : middle * dot(x, vec4(1))) - middle * (most[j] * (1.0 / q_most())) * float(sum);
			}
			put_queries(0, r * run_groups + i, high, low);
		}
		reduce(rest, false);
		if (LANE == 0) [[unroll]]
			for (uint j = 0; j < QUERIES; j++) units_s[r * QUERIES + j] = vec2(most[j] * (1.0 / q_most()), rest[j]);
	}
	barrier();
}

// (scale, zero) of the channels of word g, from the parameters at word `params`.
void group_params(uint params, uint g, out vec4 scale, out vec4 zero) {
	const uint c = g / K_STEPS * (4u * K_STEPS) + g % K_STEPS;
	uvec4 w;
	[[unroll]] for (uint b = 0; b < 4u; b++) {
		const uint at = kv_channel_param(kv_head, min(c + b * K_STEPS, HEAD_DIM - 1u), HEAD_DIM);
		w[b] = K_BYTES ? k_param_words[params + at / 2u] >> (at % 2u * 16u) : k_param_words[params + at];
	}
	if (K_BYTES) {
		const uint largest =
		    k_param_words[params + kv_byte_largest_word(kv_channel_param_words(p.n_kv_heads, HEAD_DIM), kv_head)];
		byte_params_of(uvec2((w.x & 0xffffu) | w.y << 16u, (w.z & 0xffffu) | w.w << 16u), largest, scale, zero);
	} else {
		params_of(w, scale, zero);
	}
}
vec4 sorted_query(uint j, uint g) { return Q_SORTED ? q_s[j * Q_PIECES + g] : group_of_query(j, g); }
// As stage_scales() of lib/keys.glsl, but stages rounded products of queries and scales. A subgroup works on one page
// at a time.
void stage_queries(uint page, uint last, uint own) {
	const uint lane = LANE % SLOT_LANES;
	const float middle = dot_middle(K_BITS, false);
	[[dont_unroll]] for (uint first = 0; first < TILE_PAGES; first += SLOTS) {
		// Subgroups without a page compute the last one, too, and write nothing.
		const uint slot = first + LANE / SLOT_LANES, n = min(slot, TILE_PAGES - 1u);
		const bool mine = TILE_PAGES % SLOTS == 0u || slot < TILE_PAGES;
		const uint params = KV_AT(6) + tables[pages_at + min(page + n, last) * 4 + 2];
		vec4 x[Q_HELD ? OWN_GROUPS * QUERIES : 1u];
		float most[QUERIES], sum[QUERIES];
		[[unroll]] for (uint j = 0; j < QUERIES; j++) most[j] = sum[j] = 0;
		[[unroll]] for (uint i = 0; i < OWN_GROUPS; i++) {
			const uint g = lane + i * SLOT_LANES, at = min(g, K_GROUPS - 1u);
			vec4 scale, zero;
			group_params(params, at, scale, zero);
			zero = GROUPS_FULL || g < K_GROUPS ? zero + middle * scale : vec4(0); // count each word of bytes once
			[[unroll]] for (uint j = 0; j < QUERIES; j++) {
				const vec4 q4 = sorted_query(j, at), scaled = q4 * scale, size = abs(scaled);
				if (Q_HELD) x[Q_HELD ? i * QUERIES + j : 0u] = scaled;
				most[j] = max(most[j], max(max(size.x, size.y), max(size.z, size.w)));
				[[unroll]] for (uint c = 0; c < 4u; c++) sum[j] += q4[c] * zero[c];
			}
		}
		int bytes[QUERIES];
		[[unroll]] for (uint j = 0; j < QUERIES; j++) {
			most[j] = max(subgroupMax(most[j]), LEAST);
			bytes[j] = 0;
		}
		[[unroll]] for (uint i = 0; i < OWN_GROUPS; i++) {
			const uint g = lane + i * SLOT_LANES;
			if (!GROUPS_FULL && g >= K_GROUPS) break;
			vec4 scale, zero;
			if (!Q_HELD) group_params(params, g, scale, zero);
			uint high[QUERIES], low[QUERIES];
			[[unroll]] for (uint j = 0; j < QUERIES; j++) {
				const vec4 scaled = Q_HELD ? x[Q_HELD ? i * QUERIES + j : 0u] : sorted_query(j, g) * scale;
				bytes[j] += round_group(scaled, q_most() / most[j], high[j], low[j]);
			}
			if (mine) put_queries(n, g, high, low);
		}
		[[unroll]] for (uint j = 0; j < QUERIES; j++)
			sum[j] = subgroupAdd(sum[j] - middle * (most[j] * (1.0 / q_most())) * float(bytes[j]));
		if (mine && lane == 0u)
			[[unroll]] for (uint j = 0; j < QUERIES; j++)
				units_s[n * QUERIES + j] = vec2(most[j] * (1.0 / q_most()), sum[j]);
	}
	barrier();
	own_scales = own * QUERIES * Q8_PIECES;
}

// Words [word, word + K_BATCH) of the lane's quad, and the high bits of their codes if these have some. With two words,
// the first is even.
void load_words(uint k_at, uint word, out uvec4 w[2], out uvec4 top_bits) {
	[[unroll]] for (uint i = 0; i < K_BATCH; i++) w[i] = k_codes[k_at + min(word + i, K_WORDS - 1u) * PAGE_QUADS];
	top_bits = K_BITS == 3u ? k_codes[k_at + (K_LOW + word / 2u) * PAGE_QUADS] : uvec4(0);
}
// dots[j]: sum_c b_c L_c of the 4 tokens of the lane's quad, over run r of the channels.
void dots_of_run(uint k_at, uint r, out ivec4 dots[QUERIES]) {
	ivec4 high[QUERIES];
	[[unroll]] for (uint j = 0; j < QUERIES; j++) dots[j] = high[j] = ivec4(0);
	uvec4 next[2], next_top;
	const uint begin = HALF_RUNS ? 0u : K_BATCH * HALF, by = HALF_RUNS ? K_BATCH : K_BATCH * QUAD_LANES;
	if (K_AHEAD) load_words(k_at, r * RUN_WORDS + begin, next, next_top);
	[[dont_unroll]] for (uint at = 0; at < RUN_WORDS; at += by) {
		const uint first = at + begin, word = r * RUN_WORDS + first;
		if (RUN_WORDS % by != 0u && first >= RUN_WORDS) break;
		if (!K_AHEAD) load_words(k_at, word, next, next_top);
		const uvec4 w[2] = next;
		const uvec4 top_bits = next_top;
		if (K_AHEAD && first + by < RUN_WORDS) load_words(k_at, word + by, next, next_top);
		[[unroll]] for (uint i = 0; i < K_BATCH; i++) {
			if (RUN_WORDS % K_BATCH != 0u && first + i >= RUN_WORDS) continue;
			const uvec4 top_word = K_BITS == 3u ? nibbles_to_bytes(top_bits >> (word + i) % 2u * 16u) : uvec4(0);
			if (BY_FOUR) [[unroll]] for (uint step = 0; step < K_STEPS; step++) {
				const ivec4 k = ivec4(code_bytes(w[i] >> step * K_PLAIN, top_word >> step, K_BITS, K_BOOK));
				const uint at = own_scales + ((word + i) * (K_STEPS * K_PLANES) + step) * (QUERIES / 4u);
				[[unroll]] for (uint j = 0; j < QUERIES; j++) {
					const int b = int(dot_s[at + j / 4u][j % 4u]);
					const int low = K_PLANES == 2u ? int(dot_s[at + K_STEPS * (QUERIES / 4u) + j / 4u][j % 4u]) : b;
					[[unroll]] for (uint t = 0; t < 4u; t++) {
						if (K_PLANES == 2u) high[j][t] += dot_bytes(b, k[t], 0);
						dots[j][t] += dot_bytes(low, k[t], 0);
					}
				}
			}
			[[unroll]] for (uint piece = 0; piece < (BY_FOUR ? 0u : WORD_PIECES); piece++) {
				ivec4 k[4]; // of 4 steps
				[[unroll]] for (uint s = 0; s < PIECE_STEPS; s++) {
					const uint step = piece * 4u + s;
					k[s] = ivec4(code_bytes(w[i] >> step * K_PLAIN, top_word >> step, K_BITS, K_BOOK));
				}
				[[unroll]] for (uint j = 0; j < QUERIES; j++) {
					const ivec4 b = ivec4(dot_s[own_scales + j * Q8_PIECES + (word + i) * WORD_PIECES + piece]);
					[[unroll]] for (uint s = 0; s < PIECE_STEPS; s++)
						[[unroll]] for (uint t = 0; t < 4u; t++) {
							if (K_PLANES == 2u) high[j][t] += dot_bytes(b[s], k[s][t], 0);
							dots[j][t] += dot_bytes(b[K_PLANES == 2u ? 2u + s : s], k[s][t], 0);
						}
				}
			}
		}
	}
	if (K_PLANES == 2u)
		[[unroll]] for (uint j = 0; j < QUERIES; j++) dots[j] += high[j] * 256;
}

const bool EARLY = QUAD_LANES > 1u && !HALF_RUNS; // halves are joined as integers: the bits of one lane's sum
// Call before the first tile.
void keys_start() {
	if (K_DOT && !K_CHANNEL) round_queries();
	if (K_DOT && Q_SORTED) sort_queries();
}
// Adds run r of the channels to score; `params`: word of the page's parameters, `unit`: which of units_s.
void add_run_dots(uint k_at, uint r, uint params, uint in_page, uint unit) {
	ivec4 dots[QUERIES];
	dots_of_run(k_at, r, dots);
	if (EARLY)
		[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) dots[m] = joined(dots[m * 2u], dots[m * 2u + 1u]);
	vec4 scale = vec4(1), zero = vec4(0);
	if (K_BOOK) scale = key_norms(params, in_page) * dot_unit(K_BITS, true);
	if (K_TOKEN)
		params_of(
		    k_params[(params + kv_token_param(kv_head, r * K_GROUP, in_page * 4, HEAD_DIM, K_GROUP, PAGE)) / 4], scale,
		    zero);
	[[unroll]] for (uint m = 0; m < (EARLY ? OWN_QUERIES : QUERIES); m++) {
		const uint j = EARLY ? own_query(m) : m;
		const vec2 x = units_s[unit * QUERIES + j];
		const vec4 sum = (vec4(dots[m]) * x.x + x.y) * scale;
		score[m] = K_RUNS == 1u ? sum : score[m] + sum;
		if (K_TOKEN) score[m] += q_sum[r * QUERIES + j] * zero;
	}
}
// As quad_scores() of lib/keys.glsl.
void tile_scores(uint at, uint tile, uint last, uint page, uint in_page) {
	if (!K_DOT) {
		quad_scores(at, tile, last, page, in_page);
		return;
	}
	if (K_CHANNEL) stage_queries(tile, last, page - tile);
	const uint k_at = KV_AT(2) / 4 + (tables[at] + kv_k_word(kv_head, 0, 0, HEAD_DIM, K_BITS, PAGE)) / 4 + in_page;
	const uint params = KV_AT(6) + tables[at + 2];
	if (K_RUNS == 1u) { // no loop, as in quad_scores()
		add_run_dots(k_at, 0u, params, in_page, K_CHANNEL ? page - tile : 0u);
	} else {
		[[unroll]] for (uint j = 0; j < QUERIES; j++) score[j] = vec4(0);
		[[dont_unroll]] for (uint of_r = 0; of_r < K_RUNS; of_r += HALF_RUNS ? QUAD_LANES : 1u) {
			const uint r = of_r + (HALF_RUNS ? HALF : 0u);
			if (HALF_RUNS && K_RUNS % QUAD_LANES != 0u && r >= K_RUNS) break;
			add_run_dots(k_at, r, params, in_page, r);
		}
	}
	if (!EARLY) join();
	if (K_MEAN) add_means(tile, last, page - tile);
}
