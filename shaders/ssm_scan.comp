// The scan of a state-space layer (Mamba-2): rows of a sequence go through the states of its heads in order, see
// op_state.h.
//
// For each column of a head's state S (K_DIM, v_dim):
//   S   = exp(rate * step) * S + B * (step * value)
//   out = C . S + skip * value
//   step = softplus(step + shift)
// Columns are independent of each other; lib/state_rows.glsl has their place. What does not depend on S is computed for
// TILE tokens at once, so that a token needs no barrier.
// Order of sums: each component of an invocation's quads, quad by quad; x + y and z + w; over invocations as a tree.
// So a row's bits do not depend on how a sequence is cut into dispatches.
//
// dims     out (rows, n_heads, v_dim) f32; x (rows, channels) f32: values (n_heads, v_dim), B, C (n_groups, K_DIM);
//          step (rows, n_heads) f32; rate, shift, skip (n_heads) f32; work (items) StateWork; from, to f32 words
// grid     x: blocks of columns, y: heads, z: items; SLICES * COLS / LANE_COLS invocations, TILE or more
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/work.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { SsmScanPush p; };
layout(std430, binding = 0) writeonly buffer Out { float out_x[]; };
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(std430, binding = 2) readonly buffer Step { float step_of[]; };
layout(std430, binding = 3) readonly buffer Rate { float rate[]; };
layout(std430, binding = 4) readonly buffer Shift { float shift[]; };
layout(std430, binding = 5) readonly buffer Skip { float skip[]; };
layout(std430, binding = 6) readonly buffer Work { uint work[]; };
layout(std430, binding = 7) readonly buffer From { float from[]; };
layout(std430, binding = 8) writeonly buffer To { float to[]; }; // may be the same memory as From

#define SUMMED float
#define KV_FROM KV_AT(7)
#define KV_TO KV_AT(8)
#include "lib/state_rows.glsl"
#include "lib/softplus.glsl"

uint head() { return gl_WorkGroupID.y; }
uint gate_at(uint row) { return row * p.n_heads + head(); }

shared vec2 factors[TILE]; // of a token: exp(rate * step), step

float next_step;
void load_step(uint row, uint n) {
	if (LANE < n) next_step = step_of[KV_AT(2) + gate_at(row + LANE)];
}
void make_factors(uint row, uint n) {
	if (!AHEAD) load_step(row, n);
	if (LANE >= n) return;
	const float span = softplus(next_step + shift[KV_AT(4) + head()]);
	factors[LANE] = vec2(exp(rate[KV_AT(3) + head()] * span), span);
}

void main() {
	const uint item = KV_AT(6) + gl_WorkGroupID.z * STATE_WORDS;
	const uint row = work[item], n = work[item + 1], from_at = work[item + 2], to_at = work[item + 3];
	const float skip_of = skip[KV_AT(5) + head()];
	value_at = KV_AT(1) + head() * p.v_dim, value_stride = p.channels;
	key_at = KV_AT(1) + p.n_heads * p.v_dim + head() / (p.n_heads / p.n_groups) * K_DIM, key_stride = p.channels;
	query_at = key_at + p.n_groups * K_DIM;
	load_state(head(), from_at);
	if (AHEAD && n > 0u) {
		load_tokens(row, min(n, TILE));
		load_step(row, min(n, TILE));
	}
	// Loops end in `break`: software drivers run what is behind a test once more, masked.
	uint tile = 0u;
	if (n > 0u) [[dont_unroll]] while (true) {
		const uint first = row + tile, here = min(n - tile, TILE);
		store_tokens(first, here);
		make_factors(first, here);
		barrier();
		tile += TILE;
		if (AHEAD && tile < n) {
			load_tokens(row + tile, min(n - tile, TILE));
			load_step(row + tile, min(n - tile, TILE));
		}
		uint t = 0u;
		[[dont_unroll]] while (true) {
			const vec2 factor = factors[t];
			float change[LANE_COLS];
			vec4 sum[LANE_COLS]; // C . S
			[[unroll]] for (uint c = 0u; c < LANE_COLS; ++c) {
				change[c] = factor.y * value[t * COLS + COLUMN + c];
				sum[c] = vec4(0);
			}
			for (uint i = 0u; i < QUADS; ++i) {
				const uint at = quad_at(t, i);
				const vec4 written = key[at], read = query[at];
				[[unroll]] for (uint c = 0u; c < LANE_COLS; ++c) {
					const vec4 s = factor.x * state_quad(i, c) + written * change[c];
					set_state_quad(i, c, s);
					sum[c] += read * s;
				}
			}
			[[unroll]] for (uint c = 0u; c < LANE_COLS; ++c) {
				const float all = tree_sum((sum[c].x + sum[c].y) + (sum[c].z + sum[c].w), SLICES);
				if (SLICE == c % SLICES && has_column(c))
					out_x[KV_AT(0) + gate_at(first + t) * p.v_dim + gl_WorkGroupID.x * COLS + COLUMN + c] =
					    all + skip_of * value[t * COLS + COLUMN + c];
			}
			if (++t >= here) break;
		}
		if (tile >= n) break;
		barrier(); // all of the tile has been read
	}
	store_state(head(), to_at);
}
