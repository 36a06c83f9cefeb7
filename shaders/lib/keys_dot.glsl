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
const uint SLOT_LANES = LOCAL_X < SUBGROUP ? LOCAL_X : SUBGROUP; // a subgroup stages a page
const uint SLOTS = LOCAL_X / SLOT_LANES;
const uint OWN_GROUPS = (K_GROUPS + SLOT_LANES - 1u) / SLOT_LANES; // groups of a lane
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
// Writes word g of query j of staged page n: x / unit, rounded. Returns the sum of the rounded numbers.
int put_query(uint n, uint j, uint g, vec4 x, float inverse) {
	const uint at = (n * QUERIES + j) * Q8_PIECES * 4u + g / K_STEPS * (K_STEPS * K_PLANES) + g % K_STEPS;
	const uvec4 b = round_above(x, inverse, K_PLANES == 2u ? 32896.0 : 128.0); // high byte + 128, low byte + 128
	const uint low = pack_bytes(b) ^ 0x80808080u;
	int sum = dot_bytes(int(low), 0x01010101, 0);
	if (K_PLANES == 2u) {
		const uint high = pack_bytes(b >> 8u) ^ 0x80808080u;
		dot_s[at / 4u][at % 4u] = high;
		dot_s[(at + K_STEPS) / 4u][(at + K_STEPS) % 4u] = low;
		sum += dot_bytes(int(high), 0x01010101, 0) * 256;
	} else {
		dot_s[at / 4u][at % 4u] = low;
	}
	return sum;
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
	const uint run_groups = K_GROUPS / K_RUNS;
	const float middle = dot_middle(K_BITS, K_BOOK);
	[[dont_unroll]] for (uint r = 0; r < K_RUNS; r++) {
		float rest[QUERIES];
		[[unroll]] for (uint j = 0; j < QUERIES; j++) {
			rest[j] = 0;
			for (uint i = LANE; i < run_groups; i += LOCAL_X) {
				const vec4 x = group_of_query(j, r * run_groups + i);
				const int sum = put_query(0, j, r * run_groups + i, x, most[j] > 0 ? q_most() / most[j] : 0.0);
				// The middle of a codebook's values is 0; of uniform codes it is middle * scale + zero.
				rest[j] +=
				    (K_BOOK ? 0.0 : middle * dot(x, vec4(1))) - middle * (most[j] * (1.0 / q_most())) * float(sum);
			}
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
		const uint n = min(first + LANE / SLOT_LANES, TILE_PAGES - 1u);
		const uint params = KV_AT(6) + tables[pages_at + min(page + n, last) * 4 + 2];
		vec4 x[Q_HELD ? OWN_GROUPS * QUERIES : 1u];
		float most[QUERIES], sum[QUERIES];
		[[unroll]] for (uint j = 0; j < QUERIES; j++) most[j] = sum[j] = 0;
		[[unroll]] for (uint i = 0; i < OWN_GROUPS; i++) {
			const uint g = lane + i * SLOT_LANES, at = min(g, K_GROUPS - 1u);
			vec4 scale, zero;
			group_params(params, at, scale, zero);
			zero = g < K_GROUPS ? zero + middle * scale : vec4(0); // count each word of bytes once
			[[unroll]] for (uint j = 0; j < QUERIES; j++) {
				const vec4 q4 = sorted_query(j, at), scaled = q4 * scale, size = abs(scaled);
				if (Q_HELD) x[Q_HELD ? i * QUERIES + j : 0u] = scaled;
				most[j] = max(most[j], max(max(size.x, size.y), max(size.z, size.w)));
				[[unroll]] for (uint c = 0; c < 4u; c++) sum[j] += q4[c] * zero[c];
			}
		}
		int bytes[QUERIES];
		[[unroll]] for (uint j = 0; j < QUERIES; j++) {
			most[j] = subgroupMax(most[j]);
			bytes[j] = 0;
		}
		[[unroll]] for (uint i = 0; i < OWN_GROUPS; i++) {
			const uint g = lane + i * SLOT_LANES;
			if (g >= K_GROUPS) break;
			vec4 scale, zero;
			if (!Q_HELD) group_params(params, g, scale, zero);
			[[unroll]] for (uint j = 0; j < QUERIES; j++) {
				const vec4 scaled = Q_HELD ? x[Q_HELD ? i * QUERIES + j : 0u] : sorted_query(j, g) * scale;
				bytes[j] += put_query(n, j, g, scaled, most[j] > 0 ? q_most() / most[j] : 0.0);
			}
		}
		[[unroll]] for (uint j = 0; j < QUERIES; j++) {
			const float unit = most[j] * (1.0 / q_most());
			sum[j] = subgroupAdd(sum[j] - middle * unit * float(bytes[j]));
			if (lane == 0u) units_s[n * QUERIES + j] = vec2(unit, sum[j]);
		}
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
	if (K_AHEAD) load_words(k_at, r * RUN_WORDS, next, next_top);
	[[dont_unroll]] for (uint first = 0; first < RUN_WORDS; first += K_BATCH) {
		const uint word = r * RUN_WORDS + first;
		if (!K_AHEAD) load_words(k_at, word, next, next_top);
		const uvec4 w[2] = next;
		const uvec4 top_bits = next_top;
		if (K_AHEAD && first + K_BATCH < RUN_WORDS) load_words(k_at, word + K_BATCH, next, next_top);
		[[unroll]] for (uint i = 0; i < K_BATCH; i++) {
			if (RUN_WORDS % K_BATCH != 0u && first + i >= RUN_WORDS) continue;
			const uvec4 top_word = K_BITS == 3u ? nibbles_to_bytes(top_bits >> (word + i) % 2u * 16u) : uvec4(0);
			[[unroll]] for (uint piece = 0; piece < WORD_PIECES; piece++) {
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

// Call before the first tile.
void keys_start() {
	if (K_DOT && !K_CHANNEL) round_queries();
	if (K_DOT && Q_SORTED) sort_queries();
}
// As quad_scores() of lib/keys.glsl.
void tile_scores(uint at, uint tile, uint last, uint page, uint in_page) {
	if (!K_DOT) {
		quad_scores(at, tile, last, page, in_page);
		return;
	}
	if (K_CHANNEL) stage_queries(tile, last, page - tile);
	const uint k_at = KV_AT(2) / 4 + (tables[at] + kv_k_word(kv_head, 0, 0, HEAD_DIM, K_BITS, PAGE)) / 4 + in_page;
	[[unroll]] for (uint j = 0; j < QUERIES; j++) score[j] = vec4(0);
	[[dont_unroll]] for (uint r = 0; r < K_RUNS; r++) {
		ivec4 dots[QUERIES];
		dots_of_run(k_at, r, dots);
		vec4 scale = vec4(1), zero = vec4(0);
		if (K_BOOK) scale = key_norms(KV_AT(6) + tables[at + 2], in_page) * dot_unit(K_BITS, true);
		if (K_TOKEN)
			params_of(k_params[KV_AT(6) / 4 + (tables[at + 2] + kv_token_param(kv_head, r * K_GROUP, in_page * 4,
			                                                                   HEAD_DIM, K_GROUP, PAGE)) /
			                                      4],
			          scale, zero);
		[[unroll]] for (uint j = 0; j < QUERIES; j++) {
			const vec2 x = units_s[(K_CHANNEL ? page - tile : r) * QUERIES + j];
			score[j] += (vec4(dots[j]) * x.x + x.y) * scale;
			if (K_TOKEN) score[j] += q_sum[r * QUERIES + j] * zero;
		}
	}
	if (K_MEAN) {
		float bias[QUERIES];
		mean_bias(tile, last, page - tile, bias);
		[[unroll]] for (uint j = 0; j < QUERIES; j++) score[j] += bias[j];
	}
}
