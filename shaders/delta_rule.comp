// The gated delta rule: rows of a sequence go through the states of its heads in order, see op_state.h.
//
// With k and q divided by their lengths, q also by sqrt(K_DIM), for each column of a head's state S (K_DIM, v_dim):
//   miss  = v - decay * (k . S)
//   out   = decay * (q . S) + (q . k) * sigmoid(beta) * miss
//   S     = decay * S + k * sigmoid(beta) * miss
//   decay = exp(rate * softplus(alpha + shift))
// With DELTA_BY_CHANNEL decay is a number per row of S; S is then multiplied by it before the sums. With DELTA_BOUNDED,
// too, decay = exp(bound * sigmoid(rate * (alpha + shift))).
// Built with REMOVES (RWKV-7): with a = sigmoid(beta) by channel, r = k * removal divided by its length, at least eps,
// and keys k' = k * (1 + (a - 1) * taken) and queries as they are, for each column:
//   held  = r . S
//   S     = decay * S - (r * a) * held + k' * v
//   out   = q . S;  own = (q . (k' * bonus)) * v
// Columns are independent of each other; lib/state_rows.glsl has their place. What does not depend on S is computed for
// TILE tokens at once, so that a token needs no barrier.
// Order of sums: each component of an invocation's quads, quad by quad; x + y and z + w; over invocations as a tree.
// So a row's bits do not depend on how a sequence is cut into dispatches.
//
// dims     out (rows, n_heads, v_dim) f32; x f32: q, k (rows, n_key_heads, K_DIM), v (rows, n_heads, v_dim), row by row
//          or apart; beta, alpha (rows, n_heads) f32; rate, shift (n_heads) f32; by channel: alpha (rows, n_heads,
//          K_DIM), shift (n_heads, K_DIM); with REMOVES: beta as alpha, removal, taken, bonus (n_heads, K_DIM), own as
//          out; work (items) StateWork; from, to f32 words
// grid     x: blocks of columns, y: heads, z: items; SLICES * COLS / LANE_COLS invocations, TILE or more
// FLAGS    DELTA_*
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/flags.h"
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/work.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
const bool BY_CHANNEL = (FLAGS & DELTA_BY_CHANNEL) != 0;
layout(push_constant) uniform Push { DeltaRulePush p; };
layout(std430, binding = 0) writeonly buffer Out { float out_x[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(std430, binding = 2) readonly buffer Beta { float beta[]; };
layout(std430, binding = 3) readonly buffer Alpha { float alpha[]; };
layout(std430, binding = 4) readonly buffer Rate { float rate[]; };
layout(std430, binding = 5) readonly buffer Shift { float shift[]; };
layout(std430, binding = 6) readonly buffer Work { uint work[]; };
layout(std430, binding = 7) readonly buffer From { float from[]; };
layout(std430, binding = 8) writeonly buffer To { float to[]; }; // may be the same memory as From
#ifdef REMOVES
layout(std430, binding = 9) readonly buffer Removal { float removal[]; };
layout(std430, binding = 10) readonly buffer Taken { float taken[]; };
layout(std430, binding = 11) readonly buffer Bonus { float bonus[]; };
layout(std430, binding = 12) writeonly buffer Own { float own_x[]; };
#endif

#define SUMMED vec2
#define KV_FROM KV_AT(7)
#define KV_TO KV_AT(8)
#include "lib/state_rows.glsl"
#include "lib/softplus.glsl"

uint head() { return gl_WorkGroupID.y; }
uint gate_at(uint row) { return row * p.n_heads + head(); }

#ifdef NO_SUBGROUP
const uint SUBGROUP = 32;
#else
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
#endif
// Neighbours that share a token's lengths, within a subgroup.
const uint PARTS = LOCAL_X / TILE < SUBGROUP ? LOCAL_X / TILE : SUBGROUP;

shared vec4 kept[BY_CHANNEL ? TILE * KEYS / 4u : 1u]; // decays
shared vec2 gates[TILE];                              // decay or 1, sigmoid(beta)
// Of a token: decay; decay / length of k, of q; sigmoid(beta) / length of k. With REMOVES: 1 / length of r;
// q . (r * a); q . k'; the same with the bonus.
shared vec4 factors[TILE];
shared float own_value[TILE]; // (q . k) * sigmoid(beta), of k and q that are divided by their lengths

#ifdef REMOVES
shared vec4 removed[TILE * KEYS / 4u], back[TILE * KEYS / 4u]; // r before it is divided by its length, r * a
float next_beta[AHEAD ? LOADS : 1u];
#else
float next_beta;
#endif
float next_alpha[AHEAD && BY_CHANNEL ? LOADS : 1u];

float channel_decay(uint i, float a) {
	const float of_head = rate[KV_AT(4) + head()], v = a + shift[KV_AT(5) + head() * K_DIM + key_offset(i)];
	return exp((FLAGS & DELTA_BOUNDED) != 0 ? p.bound / (1.0 + exp(-of_head * v)) : of_head * softplus(v));
}
uint alpha_at(uint row, uint i) { return KV_AT(3) + gate_at(row) * K_DIM + key_offset(i); }
#ifdef REMOVES
// The key and what removes, of element i of the tile; its invocation has stored the key as it is.
void remove_key(uint i, float b) {
	const uint of = head() * K_DIM + key_offset(i);
	const float a = 1.0 / (1.0 + exp(-b)), k = key[i / 4u][i % 4u], r = k * removal[KV_AT(9) + of];
	removed[i / 4u][i % 4u] = r, back[i / 4u][i % 4u] = r * a;
	key[i / 4u][i % 4u] = k * (1.0 + (a - 1.0) * taken[KV_AT(10) + of]);
}
uint beta_at(uint row, uint i) { return KV_AT(2) + gate_at(row) * K_DIM + key_offset(i); }
void load_rates(uint row, uint n) {
	[[unroll]] for (uint j = 0u; j < LOADS; ++j) {
		const uint i = LANE + j * LOCAL_X;
		if (AHEAD && (j == 0u || needs_more(n))) next_beta[j] = beta[beta_at(row + min(i / KEYS, n - 1u), i)];
	}
}
void store_rates(uint row, uint n) {
	if (AHEAD) {
		[[unroll]] for (uint j = 0u; j < LOADS; ++j) {
			const uint i = LANE + j * LOCAL_X;
			if ((j == 0u || needs_more(n)) && i < TILE * KEYS) remove_key(i, next_beta[j]);
		}
	} else
		for (uint i = LANE; i < n * KEYS; i += LOCAL_X) remove_key(i, beta[beta_at(row + i / KEYS, i)]);
}
#else
void load_rates(uint row, uint n) {
	if (LANE < n) next_beta = beta[KV_AT(2) + gate_at(row + LANE)];
}
void store_rates(uint row, uint n) {
	if (LANE < n) {
		float decay = 1.0;
		if (!BY_CHANNEL) decay = exp(rate[KV_AT(4) + head()] * softplus(next_alpha[0] + shift[KV_AT(5) + head()]));
		gates[LANE] = vec2(decay, 1.0 / (1.0 + exp(-next_beta)));
	}
}
#endif
void load_gates(uint row, uint n) {
	load_rates(row, n);
	if (!BY_CHANNEL) {
		if (LANE < n) next_alpha[0] = alpha[KV_AT(3) + gate_at(row + LANE)];
	} else if (AHEAD) {
		[[unroll]] for (uint j = 0u; j < LOADS; ++j) {
			const uint i = LANE + j * LOCAL_X;
			if (j == 0u || needs_more(n)) next_alpha[j] = alpha[alpha_at(row + min(i / KEYS, n - 1u), i)];
		}
	}
}
void store_gates(uint row, uint n) {
	if (!AHEAD) load_gates(row, n);
	store_rates(row, n);
	if (BY_CHANNEL && AHEAD) {
		[[unroll]] for (uint j = 0u; j < LOADS; ++j) {
			const uint i = LANE + j * LOCAL_X;
			if ((j == 0u || needs_more(n)) && i < TILE * KEYS) kept[i / 4u][i % 4u] = channel_decay(i, next_alpha[j]);
		}
	} else if (BY_CHANNEL)
		for (uint i = LANE; i < n * KEYS; i += LOCAL_X)
			kept[i / 4u][i % 4u] = channel_decay(i, alpha[alpha_at(row + i / KEYS, i)]);
}
#ifdef REMOVES
float own_part(uint i, vec4 product) { // of quad i of keys
	float sum = 0.0;
	[[unroll]] for (uint c = 0u; c < 4u; ++c)
		if (KEYS == K_DIM || i * 4u + c < K_DIM) sum += product[c] * bonus[KV_AT(11) + head() * K_DIM + i * 4u + c];
	return sum;
}
#endif
void make_factors(uint n) {
	const uint t = LANE / PARTS, first = min(t, n - 1u) * (KEYS / 4u);
	vec2 squares = vec2(0), mixed = vec2(0);
	for (uint i = LANE % PARTS; i < KEYS / 4u; i += PARTS) {
		const vec4 k = key[first + i], q = query[first + i];
#ifdef REMOVES
		const vec4 r = removed[first + i];
		squares += vec2(dot(r, r), dot(q, back[first + i])), mixed += vec2(dot(q, k), own_part(i, q * k));
#else
		squares += vec2(dot(k, k), dot(q, q)), mixed.x += dot(q, k);
#endif
	}
	squares = tree_sum(squares, PARTS), mixed = tree_sum(mixed, PARTS);
#ifdef REMOVES
	if (t < n && LANE % PARTS == 0u) {
		const float of_r = 1.0 / max(sqrt(squares.x), p.eps);
		factors[t] = vec4(of_r, squares.y * of_r, mixed);
	}
#else
	if (t < n && LANE % PARTS == 0u) {
		const float of_k = 1.0 / sqrt(squares.x + p.eps), of_q = p.scale / sqrt(squares.y + p.eps);
		factors[t] = vec4(gates[t].x, gates[t].x * of_k, gates[t].x * of_q, gates[t].y * of_k);
		own_value[t] = mixed.x * of_k * of_q * gates[t].y;
	}
#endif
}

void main() {
	const uint item = KV_AT(6) + gl_WorkGroupID.z * STATE_WORDS;
	const uint row = work[item], n = work[item + 1], from_at = work[item + 2], to_at = work[item + 3];
	const uint key_head = p.tiled != 0 ? head() % p.n_key_heads : head() / (p.n_heads / p.n_key_heads);
	query_at = KV_AT(1) + key_head * K_DIM, key_at = query_at + p.k_at, key_stride = p.key_stride;
	value_at = KV_AT(1) + p.v_at + head() * p.v_dim, value_stride = p.value_stride;
	load_state(head(), from_at);
	if (AHEAD && n > 0u) {
		load_tokens(row, min(n, TILE));
		load_gates(row, min(n, TILE));
	}
	// Loops end in `break`: software drivers run what is behind a test once more, masked.
	uint tile = 0u;
	if (n > 0u) [[dont_unroll]] while (true) {
		const uint first = row + tile, here = min(n - tile, TILE);
		store_tokens(first, here);
		store_gates(first, here);
		barrier();
		tile += TILE;
		if (AHEAD && tile < n) {
			load_tokens(row + tile, min(n - tile, TILE));
			load_gates(row + tile, min(n - tile, TILE));
		}
		make_factors(here);
		barrier();
		uint t = 0u;
		[[dont_unroll]] while (true) {
			vec4 k_s[LANE_COLS], q_s[LANE_COLS]; // k . S, q . S
			[[unroll]] for (uint c = 0u; c < LANE_COLS; ++c) k_s[c] = vec4(0), q_s[c] = vec4(0);
			for (uint i = 0u; i < QUADS; ++i) {
				const uint at = quad_at(t, i);
#ifdef REMOVES
				const vec4 k = removed[at], q = query[at];
#else
				const vec4 k = key[at], q = query[at];
#endif
				[[unroll]] for (uint c = 0u; c < LANE_COLS; ++c) {
#ifdef REMOVES
					k_s[c] += k * state_quad(i, c);
					set_state_quad(i, c, state_quad(i, c) * kept[at]);
					q_s[c] += q * state_quad(i, c);
#else
					if (BY_CHANNEL) set_state_quad(i, c, state_quad(i, c) * kept[at]);
					const vec4 s = state_quad(i, c);
					k_s[c] += k * s, q_s[c] += q * s;
#endif
				}
			}
			const vec4 factor = factors[t];
			float change[LANE_COLS];
			[[unroll]] for (uint c = 0u; c < LANE_COLS; ++c) {
				const vec2 sums = tree_sum(vec2((k_s[c].x + k_s[c].y) + (k_s[c].z + k_s[c].w),
				                                (q_s[c].x + q_s[c].y) + (q_s[c].z + q_s[c].w)),
				                           SLICES);
#ifdef REMOVES
				const float held = factor.x * sums.x, v = value[t * COLS + COLUMN + c];
				change[c] = factor.x * held;
				if (SLICE == c % SLICES && has_column(c)) {
					const uint at = gate_at(first + t) * p.v_dim + gl_WorkGroupID.x * COLS + COLUMN + c;
					out_x[KV_AT(0) + at] = sums.y - factor.y * held + factor.z * v;
					own_x[KV_AT(12) + at] = factor.w * v;
				}
#else
				const float miss = value[t * COLS + COLUMN + c] - factor.y * sums.x;
				change[c] = factor.w * miss;
				if (SLICE == c % SLICES && has_column(c))
					out_x[KV_AT(0) + gate_at(first + t) * p.v_dim + gl_WorkGroupID.x * COLS + COLUMN + c] =
					    factor.z * sums.y + own_value[t] * miss;
#endif
			}
			for (uint i = 0u; i < QUADS; ++i) {
				const vec4 k = key[quad_at(t, i)];
				[[unroll]] for (uint c = 0u; c < LANE_COLS; ++c)
#ifdef REMOVES
					set_state_quad(i, c, state_quad(i, c) + k * value[t * COLS + COLUMN + c] -
					                         back[quad_at(t, i)] * change[c]);
#else
					set_state_quad(i, c, factor.x * state_quad(i, c) + k * change[c]);
#endif
			}
			if (++t >= here) break;
		}
		if (tile >= n) break;
		barrier(); // all of the tile has been read
	}
	store_state(head(), to_at);
}
