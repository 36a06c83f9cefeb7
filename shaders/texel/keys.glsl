// Scores of tokens in pages of any key format: shared by texel/attend.comp and texel/weigh.comp.
//
// K per channel: q . k = sum_c (q_c scale_c) code_c + sum_c q_c zero_c, the query scaled once per tile. K per token:
// q . k = sum_runs scale (sum_c q_c code_c) + zero (sum_c q_c).
// With norms: q . k = norm (sum_c q_c value(code_c)) + sum_c q_c mean_c; rotated keys meet rotated queries.
// After texel/queries.glsl; the including file has constants K_..., tables, pages_at, balance_at, kv_head, and bindings
// k_codes (2), k_params (6), balance.
const uint K_RUNS = K_TOKEN && K_GROUP < HEAD_DIM ? HEAD_DIM / K_GROUP : 1u;
const uint LOAD_WORDS = K_BITS == 16 ? 4 : K_BITS == 3 ? 3 : K_BITS == 8 ? 2 : 1; // words of a token loaded together
const uint LOAD_STEPS = K_BITS == 2 ? 2 : K_BITS == 1 || K_BITS == 3 ? 4 : 1; // steps of 8 channels in them
const uint K_LOW = (HEAD_DIM * 2u + 31u) / 32u;                        // words of the low plane of 3-bit codes
const uint RUN_STEPS = HEAD_DIM / 8 / K_RUNS;
const uint RUN_LOADS = (RUN_STEPS + LOAD_STEPS - 1) / LOAD_STEPS;
float q_sum[K_RUNS * QUERIES]; // [run][query], for K_TOKEN

// What channels 4 c .. 4 c + 3 of a query are divided by.
vec4 balance_of(uint c) {
	const uvec4 w = LOAD4(balance, balance_at / 4 + kv_head * (HEAD_DIM / 8) + c / 2);
	return c % 2 == 0 ? halves_low(w) : halves_high(w);
}

uint k_channel_at = 0; // piece of the tile's K parameters, for K_CHANNEL
uint k_largest = 0;    // word of the largest (scale, |zero|), with K_BYTES
float q_zero[Q_FETCH]; // this lane's share of sum_c q_c zero_c

void queries_fit(uint c) {
	if (BALANCE) {
		const vec4 by = balance_of(c);
		[[unroll]] for (uint f = 0; f < Q_FETCH; f++) q_part[f] /= by;
	}
	if (K_CHANNEL) {
		vec4 scale, zero;
		if (K_BYTES) {
			const uvec4 w = LOAD4(k_params, k_channel_at + c / 2);
			byte_params_of(c % 2 == 0 ? w.xy : w.zw, k_largest, scale, zero);
		} else {
			params_of(LOAD4(k_params, k_channel_at + c), scale, zero);
		}
		[[unroll]] for (uint f = 0; f < Q_FETCH; f++) {
			q_zero[f] += dot(q_part[f], zero);
			q_part[f] *= scale;
		}
	}
}
void sum_queries() {
	[[unroll]] for (uint r = 0; r < K_RUNS; r++) {
		float x[Q_FETCH];
		[[unroll]] for (uint f = 0; f < Q_FETCH; f++) x[f] = 0;
		for (uint step = r * RUN_STEPS; step < (r + 1) * RUN_STEPS; step++) {
			queries_step(step);
			[[unroll]] for (uint f = 0; f < Q_FETCH; f++) x[f] += dot(q_part[f], vec4(1));
		}
		[[unroll]] for (uint j = 0; j < QUERIES; j++) q_sum[r * QUERIES + j] = query_sum(x, j);
	}
}

// Lane j's sum_c q_c mean_c of query j; `means`: piece of a page's means.
float own_bias(uint means) {
	float sum = 0;
	[[unroll]] for (uint i = 0; i < Q_PIECES / 2u; i++) {
		const uvec4 w = LOAD4(k_params, means + i);
		sum += dot(own_query[i * 2u], halves_low(w)) + dot(own_query[i * 2u + 1u], halves_high(w));
	}
	return sum;
}
// Norms of the quad's keys; `params`: word of the page's parameters.
vec4 key_norms(uint params, uint in_page) {
	const uint at = params + kv_norm_word(kv_head, in_page * 4, PAGE, K_BYTES ? 8u : 16u);
	if (!K_BYTES) return norms_of_halves(LOAD_WORD(k_params, at), LOAD_WORD(k_params, at + 1));
	return norms_of_bytes(LOAD_WORD(k_params, at),
	                      LOAD_WORD(k_params, params + kv_norm_scale_word(p.n_kv_heads, kv_head, PAGE)));
}

// The words of LOAD_STEPS steps of the lane's quad, [word][token]; `load`: number of this group of words.
void load_k(uint at, uint load, out uvec4 w[LOAD_WORDS]) {
	if (K_BITS == 3) {
		[[unroll]] for (uint i = 0; i < 3; i++) w[K_BITS == 3 ? i : 0] =
		    LOAD4(k_codes, at + (i < 2 ? 2 * load + i : K_LOW + load) * PAGE_QUADS);
		return;
	}
	[[unroll]] for (uint i = 0; i < LOAD_WORDS; i++) w[i] = LOAD4(k_codes, at + (load * LOAD_WORDS + i) * PAGE_QUADS);
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
// score += q . k over channels 8 step .. 8 step + 7, step i of the words.
void add_step(uint step, uvec4 w[LOAD_WORDS], uint i) {
	if (RUN_STEPS % LOAD_STEPS != 0 && step >= HEAD_DIM / 8) return;
	queries_step(step);
	[[unroll]] for (uint h = 0; h < 2; h++) {
		vec4 k[4];
		decode_k(w, i, h, k);
		score_half(step, h, k);
	}
}
// The same over load n of run r.
void add_load(uint k_at, uint r, uint n) {
	const uint load = r * RUN_LOADS + n, step = r * RUN_STEPS + n * LOAD_STEPS;
	uvec4 w[LOAD_WORDS];
	load_k(k_at, load, w);
	if (OWN_QUERY)
		[[unroll]] for (uint i = 0; i < LOAD_STEPS; i++) add_step(step + i, w, i);
	else
		[[dont_unroll]] for (uint i = 0; i < LOAD_STEPS; i++) add_step(step + i, w, i);
}
uint biased_page = ~0u; // page whose means own_mean belongs to
float own_mean = 0;

// score[j]: q_j . k of the 4 tokens of the lane's quad, whose page's entry is tables[at].
void quad_scores(uint at, uint page, uint in_page) {
	float bias[QUERIES]; // sum_c q_c zero_c, for K_CHANNEL
	[[unroll]] for (uint j = 0; j < QUERIES; j++) bias[j] = 0;
	if (K_CHANNEL) {
		const uint params = KV_AT(6) + tables[at + 2];
		k_channel_at = params / 4 + kv_channel_param(kv_head, 0, HEAD_DIM) / (K_BYTES ? 8 : 4);
		if (K_BYTES)
			k_largest = LOAD_WORD(
			    k_params, params + kv_byte_largest_word(kv_channel_param_words(p.n_kv_heads, HEAD_DIM), kv_head));
		[[unroll]] for (uint f = 0; f < Q_FETCH; f++) q_zero[f] = 0;
	}
	if (K_MEAN && page != biased_page) {
		own_mean =
		    own_bias(KV_AT(6) / 4 +
		             (tables[at + 2] + kv_mean_word(p.n_kv_heads, kv_head, 0, HEAD_DIM, PAGE, K_BYTES ? 8u : 16u)) / 4);
		biased_page = page;
	}
	const uint k_at = KV_AT(2) / 4 + (tables[at] + kv_k_word(kv_head, 0, 0, HEAD_DIM, K_BITS, PAGE)) / 4 + in_page;
	vec4 dots[QUERIES];
	[[unroll]] for (uint j = 0; j < QUERIES; j++) dots[j] = score[j] = vec4(0);
	[[unroll]]
	for (uint r = 0; r < K_RUNS; r++) {
		if (OWN_QUERY) // unrolled, own_query is in registers
			[[unroll]] for (uint n = 0; n < RUN_LOADS; n++) add_load(k_at, r, n);
		else // rolled: unrolled, it takes more registers than it saves time
			for (uint n = 0; n < RUN_LOADS; n++) add_load(k_at, r, n);
		if (K_TOKEN) {
			vec4 scale, zero;
			params_of(LOAD4(k_params, KV_AT(6) / 4 + (tables[at + 2] + kv_token_param(kv_head, r * K_GROUP, in_page * 4,
			                                                                          HEAD_DIM, K_GROUP, PAGE)) /
			                                             4),
			          scale, zero);
			[[unroll]] for (uint j = 0; j < QUERIES; j++) {
				dots[j] += score[j] * scale + q_sum[r * QUERIES + j] * zero;
				score[j] = vec4(0);
			}
		}
	}
	if (K_BOOK) {
		const vec4 norms = key_norms(KV_AT(6) + tables[at + 2], in_page);
		[[unroll]] for (uint j = 0; j < QUERIES; j++) score[j] *= norms;
	}
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		if (K_CHANNEL) bias[j] = query_sum(q_zero, j);
		if (K_MEAN) bias[j] = subgroupShuffle(own_mean, j);
		if (K_TOKEN) score[j] = dots[j];
		score[j] += bias[j];
	}
}
