// Scores of tokens in pages of any key format: shared by attend.comp and weigh.comp.
//
// K per channel: q . k = sum_c q_c scale_c code_c + sum_c q_c zero_c; the second sum is computed once per page.
// K per token: q . k = sum_runs scale (sum_c q_c code_c) + zero (sum_c q_c).
// With norms: q . k = norm (sum_c q_c value(code_c)) + sum_c q_c mean_c; rotated keys meet rotated queries.
// After lib/key_scales.glsl and lib/queries.glsl; the including file has constants K_..., tables, pages_at, balance_at,
// kv_head, work_s, and bindings k_codes (2), k_params (6), balance.
const uint K_RUNS = K_TOKEN && K_GROUP < HEAD_DIM ? HEAD_DIM / K_GROUP : 1u;
const uint LOAD_WORDS = K_BITS == 16 ? 4 : K_BITS == 3 ? 3 : K_BITS == 8 ? 2 : 1; // words of a token loaded together
const uint LOAD_STEPS = K_BITS == 2 ? 2 : K_BITS == 1 || K_BITS == 3 ? 4 : 1; // steps of 8 channels in them
const uint K_LOW = (HEAD_DIM * 2u + 31u) / 32u;                        // words of the low plane of 3-bit codes
const uint RUN_STEPS = HEAD_DIM / 8 / K_RUNS;
const uint RUN_LOADS = (RUN_STEPS + LOAD_STEPS - 1) / LOAD_STEPS;
// Loads that are under way together: a subgroup that waits for each alone takes a memory latency per load.
const bool LOADS_AHEAD = (FLAGS & ATTEND_LOAD_AHEAD) != 0u;
const uint LOADS_OF_FOUR = RUN_LOADS % (4u * QUAD_LANES); // a step of its own: glslang 12
const uint K_LOADS_AHEAD = LOADS_AHEAD && LOADS_OF_FOUR == 0u ? 4u : 1u;
// A lane's half of the channels: every other run where a run has few words, else every other group of words.
const bool HALF_RUNS = QUAD_LANES > 1u && K_RUNS > 1u && K_BITS < 4u;
const bool LOADS_UNEVEN = !HALF_RUNS && RUN_LOADS % QUAD_LANES != 0u; // the second lane has none for the last one
#define ADDS (HALF == 0u)          // whether a lane adds what belongs to all channels
#define COUNTS (HALF_RUNS || ADDS) // what belongs to the run
const uint SLOT_LANES = LOCAL_X < SUBGROUP ? LOCAL_X : SUBGROUP; // a subgroup sums or stages a page
const uint SLOTS = LOCAL_X / SLOT_LANES;
shared float means_s[K_MEAN ? TILE_PAGES * QUERIES : 1u];
shared float q_sum[K_TOKEN ? K_RUNS * QUERIES : 1u];

// What channels 4 c .. 4 c + 3 of a query are divided by.
vec4 balance_of(uint c) {
	const uvec4 w = balance[balance_at / 4 + kv_head * (HEAD_DIM / 8) + c / 2];
	return c % 2 == 0 ? halves_low(w) : halves_high(w);
}

uint own_scales = 0; // where in work_s the scales, or scaled queries, of the lane's page begin

vec4 query_fit(vec4 x, uint c) { return BALANCE ? x / balance_of(c) : x; }
vec4 key_scale(uint step, uint i) { return KEYS_SCALED ? work_s[own_scales + step * 2 + i] : vec4(1); }
vec4 query(uint j, uint step, uint i) {
	const uint at = j * Q_PIECES + step * 2 + i;
	return QUERIES_SCALED ? work_s[own_scales + at] : q_s[at];
}
void sum_queries() {
	for (uint r = 0; r < K_RUNS; r++) {
		float x[QUERIES];
		[[unroll]] for (uint j = 0; j < QUERIES; j++) {
			x[j] = 0;
			for (uint i = LANE; i < RUN_STEPS * 2; i += LOCAL_X)
				x[j] += dot(q_s[j * Q_PIECES + r * RUN_STEPS * 2 + i], vec4(1));
		}
		reduce(x, false);
		if (LANE == 0)
			[[unroll]] for (uint j = 0; j < QUERIES; j++) q_sum[r * QUERIES + j] = x[j];
	}
	barrier();
}
// Stages the scales or scaled queries of pages [page, page + TILE_PAGES); `last` is the last page that exists. bias:
// sum_c q_c zero_c of the lane's page, number `own` of the tile.
void stage_scales(uint page, uint last, uint own, out float bias[QUERIES]) {
	for (uint n = 0; n < TILE_PAGES; n++) {
		const uint params = KV_AT(6) / 4 + tables[pages_at + min(page + n, last) * 4 + 2] / 4;
		const uint channel = kv_channel_param(kv_head, 0, HEAD_DIM);
		float sum[QUERIES];
		[[unroll]] for (uint j = 0; j < QUERIES; j++) sum[j] = 0;
		for (uint i = LANE; i < Q_PIECES; i += LOCAL_X) {
			vec4 scale, zero;
			if (K_BYTES) {
				const uvec4 w = k_params[params + channel / 8 + i / 2];
				const uint n_params = kv_channel_param_words(p.n_kv_heads, HEAD_DIM);
				byte_params_of(i % 2 == 0 ? w.xy : w.zw,
				               k_param_words[params * 4 + kv_byte_largest_word(n_params, kv_head)], scale, zero);
			} else {
				params_of(k_params[params + channel / 4 + i], scale, zero);
			}
			if (KEYS_SCALED) work_s[n * Q_PIECES + i] = scale;
			[[unroll]] for (uint j = 0; j < QUERIES; j++) {
				const vec4 q4 = q_s[j * Q_PIECES + i];
				if (QUERIES_SCALED) work_s[(n * QUERIES + j) * Q_PIECES + i] = q4 * scale;
				sum[j] += dot(q4, zero);
			}
		}
		reduce(sum, false);
		[[unroll]] for (uint j = 0; j < QUERIES; j++) bias[j] = n == own ? sum[j] : bias[j];
	}
	own_scales = own * (KEYS_SCALED ? 1 : QUERIES) * Q_PIECES;
	barrier();
}

// Adds sum_c q_c mean_c of the lane's page, number `own` of the tile, to score, after join(); pages as for
// stage_scales(). A subgroup sums one page at a time.
void add_means(uint page, uint last, uint own) {
#ifdef NO_SUBGROUP
	const uint lanes = LOCAL_X;
#else
	const uint lanes = SLOT_LANES;
#endif
	for (uint first = 0; first < TILE_PAGES; first += LOCAL_X / lanes) {
		const uint slot = first + LANE / lanes, n = min(slot, TILE_PAGES - 1u);
		const uint means = KV_AT(6) / 4 + (tables[pages_at + min(page + n, last) * 4 + 2] +
			kv_mean_word(p.n_kv_heads, kv_head, 0, HEAD_DIM, PAGE, K_BYTES ? 8u : 16u)) / 4;
		float sum[QUERIES];
		[[unroll]] for (uint j = 0; j < QUERIES; j++) sum[j] = 0;
		for (uint i = LANE % lanes; i < Q_PIECES; i += lanes) {
			const uvec4 w = k_params[means + i / 2];
			const vec4 mean = i % 2 == 0 ? halves_low(w) : halves_high(w);
			[[unroll]] for (uint j = 0; j < QUERIES; j++) sum[j] += dot(q_s[j * Q_PIECES + i], mean);
		}
#ifdef NO_SUBGROUP
		reduce(sum, false);
#else
		[[unroll]] for (uint j = 0; j < QUERIES; j++) sum[j] = subgroupAdd(sum[j]);
#endif
		if (LANE % lanes == 0u && slot < TILE_PAGES) // others have computed the last page, too
			[[unroll]] for (uint j = 0; j < QUERIES; j++) means_s[n * QUERIES + j] = sum[j];
	}
	barrier(); // and there is one before the next tile
	[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) score[m] += means_s[own * QUERIES + own_query(m)];
}
// Norms of the quad's keys; `params`: word of the page's parameters.
vec4 key_norms(uint params, uint in_page) {
	const uint at = params + kv_norm_word(kv_head, in_page * 4, PAGE, K_BYTES ? 8u : 16u);
	if (!K_BYTES) return norms_of_halves(k_param_words[at], k_param_words[at + 1]);
	return norms_of_bytes(k_param_words[at], k_param_words[params + kv_norm_scale_word(p.n_kv_heads, kv_head, PAGE)]);
}

// The words of LOAD_STEPS steps of the lane's quad, [word][token]; `load`: number of this group of words.
void load_k(uint at, uint load, out uvec4 w[LOAD_WORDS]) {
	if (K_BITS == 3) {
		[[unroll]] for (uint i = 0; i < 3; i++) w[K_BITS == 3 ? i : 0] =
		    k_codes[at + (i < 2 ? 2 * load + i : K_LOW + load) * PAGE_QUADS];
		return;
	}
	[[unroll]] for (uint i = 0; i < LOAD_WORDS; i++) w[i] = k_codes[at + (load * LOAD_WORDS + i) * PAGE_QUADS];
}
// Channels 4 half_ .. 4 half_ + 3 of the i-th step of the words.
void decode_k(uvec4 w[LOAD_WORDS], uint i, const uint half_, out vec4 k[4]) {
	[[unroll]] for (uint c = 0; c < 4; c++) {
		if (K_BITS == 16) {
			const uvec4 x = w[K_BITS == 16 ? half_ * 2 + c / 2 : 0];
			k[c] =
			    c % 2 == 0
			        ? vec4(unpackHalf2x16(x.x).x, unpackHalf2x16(x.y).x, unpackHalf2x16(x.z).x, unpackHalf2x16(x.w).x)
			        : vec4(unpackHalf2x16(x.x).y, unpackHalf2x16(x.y).y, unpackHalf2x16(x.z).y, unpackHalf2x16(x.w).y);
		} else if (K_BITS == 8) {
			k[c] = CODE_VEC4(CODE(w[K_BITS == 8 ? half_ : 0], 8u, c));
		} else if (K_BITS == 3) {
			const uvec4 low = (i < 2 ? w[0] : w[K_BITS == 3 ? 1 : 0]) >> (i % 2 * 16),
			            high = w[K_BITS == 3 ? 2 : 0] >> (i * 8);
			k[c] = CODE_VEC4(CODE(low, 2u, half_ * 4 + c) | CODE(high, 1u, half_ * 4 + c) << 2u);
		} else {
			k[c] = CODE_VEC4(CODE(w[0] >> (K_BITS < 4 ? i * 8 * K_BITS : 0), K_BITS, half_ * 4 + c));
		}
		if (K_BOOK) k[c] = book_values(k[c], K_BITS);
	}
}

// Adds the i-th step of 8 channels of load n of run r, whose words are w, to score.
void add_step(uint r, uint n, uint i, uvec4 w[LOAD_WORDS]) {
	const uint step = r * RUN_STEPS + n * LOAD_STEPS + i;
	if (RUN_STEPS % LOAD_STEPS != 0 && step >= HEAD_DIM / 8) return;
	queries_step(step);
	[[unroll]] for (uint h = 0; h < 2; h++) {
		vec4 k[4];
		decode_k(w, i, h, k);
		score_half(step, h, k);
	}
}
// Adds run r of the channels to score or, with a scale per token and run, to dots. `params`: word of the page's
// parameters.
void add_run(uint k_at, uint r, uint params, uint in_page, inout vec4 dots[QUERIES]) {
	const uint lanes = HALF_RUNS ? 1u : QUAD_LANES;
	[[dont_unroll]] for (uint of_n = 0; of_n < RUN_LOADS; of_n += lanes * K_LOADS_AHEAD) {
		const uint n = of_n + (HALF_RUNS ? 0u : HALF);
		uvec4 w[K_LOADS_AHEAD][LOAD_WORDS];
		if (LOADS_UNEVEN && n >= RUN_LOADS) break; // then K_LOADS_AHEAD is 1
		[[unroll]] for (uint a = 0; a < K_LOADS_AHEAD; a++) load_k(k_at, r * RUN_LOADS + n + a * lanes, w[a]);
		[[unroll]] for (uint a = 0; a < K_LOADS_AHEAD; a++) {
			if (LOAD_STEPS == 1u) {
				add_step(r, n + a * lanes, 0u, w[a]);
			} else { // rolled: unrolled, it takes more registers than it saves time
				[[dont_unroll]] for (uint i = 0; i < LOAD_STEPS; i++) add_step(r, n + a * lanes, i, w[a]);
			}
		}
	}
	if (K_TOKEN) {
		vec4 scale, zero;
		params_of(
		    k_params[(params + kv_token_param(kv_head, r * K_GROUP, in_page * 4, HEAD_DIM, K_GROUP, PAGE)) / 4], scale,
		    zero);
		[[unroll]] for (uint j = 0; j < QUERIES; j++) {
			dots[j] += score[j] * scale;
			if (COUNTS) dots[j] += q_sum[r * QUERIES + j] * zero;
			score[j] = vec4(0);
		}
	}
}

// score[m]: q . k of the 4 tokens of the lane's quad and query own_query(m). The entry of the quad's page is tables[at].
// All lanes call it together: their pages are `tile` and the next ones, up to `last`.
void quad_scores(uint at, uint tile, uint last, uint page, uint in_page) {
	float bias[QUERIES]; // sum_c q_c zero_c, for K_CHANNEL
	if (K_CHANNEL) stage_scales(tile, last, page - tile, bias);
	const uint k_at = KV_AT(2) / 4 + (tables[at] + kv_k_word(kv_head, 0, 0, HEAD_DIM, K_BITS, PAGE)) / 4 + in_page;
	const uint params = KV_AT(6) + tables[at + 2];
	vec4 dots[QUERIES];
	[[unroll]] for (uint j = 0; j < QUERIES; j++) dots[j] = score[j] = vec4(0);
	if (K_RUNS == 1u) { // no loop: drivers would keep it, and registers for sums across it
		add_run(k_at, 0u, params, in_page, dots);
	} else {
		[[dont_unroll]] // registers
		for (uint of_r = 0; of_r < K_RUNS; of_r += HALF_RUNS ? QUAD_LANES : 1u) {
			const uint r = of_r + (HALF_RUNS ? HALF : 0u);
			if (HALF_RUNS && K_RUNS % QUAD_LANES != 0u && r >= K_RUNS) break;
			add_run(k_at, r, params, in_page, dots);
		}
	}
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		if (K_TOKEN) score[j] = dots[j];
		if (K_CHANNEL && ADDS) score[j] += bias[j];
	}
	join();
	if (K_BOOK) {
		const vec4 norms = key_norms(params, in_page);
		[[unroll]] for (uint m = 0; m < OWN_QUERIES; m++) score[m] *= norms;
	}
	if (K_MEAN) add_means(tile, last, page - tile);
}

// keys_start() before the first tile, and tile_scores() with the arguments of quad_scores(), for float or integer
// products according to the build.
#ifdef INT8
#include "lib/keys_dot.glsl"
#else
void keys_start() {}
void tile_scores(uint at, uint tile, uint last, uint page, uint in_page) { quad_scores(at, tile, last, page, in_page); }
#endif
