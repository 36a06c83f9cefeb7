// Latent attention over tiles of tokens: what attend_latent.comp and attend_latent_prompt.comp share.
//
//   s_t = (q . c_t + q_rope . r_t) / sqrt(HEAD_DIM),  sum_t w_t c_t,  w_t = exp(s_t - max)
//
// A token's latent c_t is read as a key and as a value, by all heads. So a tile of TILE tokens is decoded once, into
// shared memory as halves, latents first, then rotated keys r_t; then QUERIES queries read it there. For scores, lanes
// share a token; for sums, a lane owns 4 channels, or OWN times 4.
//
// The including file defines LOCAL_X, HEAD_DIM, ROPE_DIM, TILE, QUERIES, SOFTCAP and Q_ROPE_BINDING, declares q and
// q_rope in vec4, and supplies:
//   uvec2 tile_piece(uint t, uint c)  halves of channels 4 c .. of token t of the tile, those of r_t behind those of
//                                     c_t; 0 for a token that no query sees
//   uint query_row(uint j)            row of q that is query j, in heads; any valid one where there is no query j
//   bool sees(uint j, uint t)         whether query j sees token t of the tile
// Needs: LOCAL_X a multiple of TILE and at least QUERIES; HEAD_DIM, ROPE_DIM multiples of 4.
#extension GL_EXT_control_flow_attributes : require
#include "lib/book.glsl"
#include "lib/no_token.glsl"
#include "lib/softcap.glsl"

#define LANE gl_LocalInvocationID.x
uvec2 tile_piece(uint t, uint c);
const uint PIECES = HEAD_DIM / 4u, ALL_PIECES = PIECES + ROPE_DIM / 4u; // of 4 channels
const uint ROW = ALL_PIECES | 1u;                                      // odd: tokens lie in different banks
const uint SLICES = LOCAL_X / TILE;                                    // lanes that share a token
const uint OWN = (PIECES + LOCAL_X - 1u) / LOCAL_X;                    // pieces of a lane

shared uvec2 tile_s[TILE * ROW];
shared vec4 q_s[QUERIES * ALL_PIECES];
shared float part_s[QUERIES * LOCAL_X]; // of scores
shared float weight_s[QUERIES * TILE];  // scores, then weights
shared float shrink_s[QUERIES];         // of what has been summed; at last the state's maximum
shared float total_s[QUERIES];

vec4 acc[QUERIES * OWN];
float top = NO_TOKEN, total = 0; // of query LANE

#define STAGED_PIECES (QUERIES * PIECES)
#define STAGED(i) q_s[(i) / PIECES * ALL_PIECES + (i) % PIECES]
#define STAGED_SET(i, x) q_s[(i) / PIECES * ALL_PIECES + (i) % PIECES] = x
#include "lib/rotate.glsl"

void state_begin() {
	for (uint i = LANE; i < QUERIES * ALL_PIECES; i += LOCAL_X) {
		const uint row = query_row(i / ALL_PIECES), c = i % ALL_PIECES;
		if (c < PIECES) q_s[i] = q[KV_AT(1) / 4u + row * PIECES + c];
		else q_s[i] = q_rope[KV_AT(Q_ROPE_BINDING) / 4u + row * (ROPE_DIM / 4u) + c - PIECES];
	}
	[[unroll]] for (uint i = 0; i < QUERIES * OWN; i++) acc[i] = vec4(0);
	barrier();
}

// Scores of the tile in shared memory -> weight_s; NO_TOKEN where a query does not see a token.
void tile_scores() {
	const uint token = LANE / SLICES;
	float sum[QUERIES];
	[[unroll]] for (uint j = 0; j < QUERIES; j++) sum[j] = 0;
	for (uint c = LANE % SLICES; c < ALL_PIECES; c += SLICES) {
		const uvec2 w = tile_s[token * ROW + c];
		const vec4 k = vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
		[[unroll]] for (uint j = 0; j < QUERIES; j++) sum[j] += dot(q_s[j * ALL_PIECES + c], k);
	}
	[[unroll]] for (uint j = 0; j < QUERIES; j++) part_s[j * LOCAL_X + LANE] = sum[j];
	barrier();
	for (uint i = LANE; i < QUERIES * TILE; i += LOCAL_X) {
		const uint j = i / TILE, t = i % TILE;
		float s = 0;
		for (uint k = 0; k < SLICES; k++) s += part_s[j * LOCAL_X + t * SLICES + k];
		weight_s[i] = sees(j, t) ? score_of(s) : NO_TOKEN;
	}
	barrier();
}

// Weights of the tile, and what they add to the sums.
void tile_attend() {
	tile_scores();
	if (LANE < QUERIES) {
		float now = top, sum_here = 0;
		for (uint t = 0; t < TILE; t++) now = max(now, weight_s[LANE * TILE + t]);
		const float base = now == NO_TOKEN ? 0.0 : now;
		// Exactly 1 where the tile changes nothing, so that a row's result does not depend on tiles it sees nothing of.
		const float shrink = now == top ? 1.0 : exp(top - base);
		for (uint t = 0; t < TILE; t++) {
			const float w = exp(weight_s[LANE * TILE + t] - base);
			weight_s[LANE * TILE + t] = w;
			sum_here += w;
		}
		top = now;
		total = total * shrink + sum_here;
		shrink_s[LANE] = shrink;
	}
	barrier();
	[[unroll]] for (uint o = 0; o < OWN; o++) {
		const uint c = min(LANE + o * LOCAL_X, PIECES - 1u);
		[[unroll]] for (uint j = 0; j < QUERIES; j++) acc[j * OWN + o] *= shrink_s[j];
		for (uint t = 0; t < TILE; t++) {
			const uvec2 w = tile_s[t * ROW + c];
			const vec4 v = vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
			[[unroll]] for (uint j = 0; j < QUERIES; j++) acc[j * OWN + o] += weight_s[j * TILE + t] * v;
		}
	}
}

// The next tile. by_token: neighbouring lanes load neighbouring tokens, else neighbouring channels.
void tile_load(const bool by_token) {
	barrier(); // all lanes are done with the tile before
	for (uint i = LANE; i < TILE * ALL_PIECES; i += LOCAL_X) {
		const uint t = by_token ? i % TILE : i / ALL_PIECES, c = by_token ? i / TILE : i % ALL_PIECES;
		tile_s[t * ROW + c] = tile_piece(t, c);
	}
	barrier();
}

// Afterwards shrink_s and total_s have maximum and sum of weights of each query.
void state_finish(const bool rotated) {
	barrier(); // all lanes have read the factors of the last tile
	if (LANE < QUERIES) {
		shrink_s[LANE] = top;
		total_s[LANE] = total;
	}
	barrier();
	if (!rotated) return;
	[[unroll]] for (uint j = 0; j < QUERIES; j++)
		[[unroll]] for (uint o = 0; o < OWN; o++)
			if (LANE + o * LOCAL_X < PIECES) q_s[j * ALL_PIECES + LANE + o * LOCAL_X] = acc[j * OWN + o];
	barrier();
	rotate_staged(STAGED_PIECES, true);
	[[unroll]] for (uint j = 0; j < QUERIES; j++)
		[[unroll]] for (uint o = 0; o < OWN; o++)
			acc[j * OWN + o] = q_s[j * ALL_PIECES + min(LANE + o * LOCAL_X, PIECES - 1u)];
}
