// What delta_rule.comp and ssm_scan.comp have in common: where a state lies, and how tokens reach shared memory.
//
// A workgroup takes COLS columns of a head's state. SLICES neighbouring invocations, which lie in one subgroup, share
// LANE_COLS of them: each holds, in registers, every SLICES-th quad of the K_DIM rows, ROWS rows. Rows from K_DIM to
// KEYS are zero.
// TILE tokens at a time pass through shared memory. With AHEAD they are loaded into registers while the tokens before
// them are computed; without, a short loop copies them.
// tree_sum() adds neighbours first, then pairs of neighbours, and so on: by shuffles, or, built as NO_SUBGROUP, in
// shared memory, in the same order.
//
// The including file has the bindings x, work, from and to; defines SUMMED, the type that tree_sum() adds, KV_FROM and
// KV_TO, the first words of the states' memory; and sets the places of x before it loads.
#extension GL_EXT_control_flow_attributes : require
#ifndef NO_SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

// Where in x row 0's keys (B), queries (C) and values of the workgroup's head begin, and elements of a row of these.
uint key_at, query_at, value_at, key_stride, value_stride;

layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 128;
layout(constant_id = SPEC_HEAD_DIM) const uint K_DIM = 128;
layout(constant_id = SPEC_STATE_ROWS) const uint ROWS = 16;
layout(constant_id = SPEC_STATE_COLS) const uint COLS = 32;
layout(constant_id = SPEC_LANE_COLS) const uint LANE_COLS = 2;
layout(constant_id = SPEC_TILE) const uint TILE = 8;
layout(constant_id = SPEC_AHEAD) const bool AHEAD = true;
const uint QUADS = ROWS / 4u, SLICES = LOCAL_X / (COLS / LANE_COLS), KEYS = SLICES * ROWS;
const uint LOADS = (TILE * KEYS + LOCAL_X - 1u) / LOCAL_X, VALUE_LOADS = (TILE * COLS + LOCAL_X - 1u) / LOCAL_X;
const uint MOST_LOADS = LOADS > VALUE_LOADS ? LOADS : VALUE_LOADS;
#define LANE gl_LocalInvocationID.x
#define SLICE (LANE % SLICES)
#define COLUMN (LANE / SLICES * LANE_COLS) // the first of the invocation's columns in the workgroup

shared vec4 key[TILE * KEYS / 4u], query[TILE * KEYS / 4u];
shared float value[TILE * COLS];
float state[ROWS * LANE_COLS]; // numbers, not quads: drivers that keep them in memory write these one by one

// ---- sums over `parts` neighbouring invocations, a power of two of at most 32; all of the workgroup call

#ifdef NO_SUBGROUP
shared SUMMED tree_s[2u * LOCAL_X]; // two buffers: an invocation may be a barrier ahead of another
uint tree_turn = 0u;
SUMMED tree_sum(SUMMED v, const uint parts) {
	if (parts == 1u) return v;
	const uint first = tree_turn + LANE / parts * parts;
	tree_s[tree_turn + LANE] = v;
	tree_turn = LOCAL_X - tree_turn;
	barrier();
	SUMMED part[32];
	for (uint i = 0u; i < parts; ++i) part[i] = tree_s[first + i];
	for (uint by = 1u; by < parts; by *= 2u)
		for (uint i = 0u; i < parts; i += 2u * by) part[i] += part[i + by];
	return part[0];
}
#else
SUMMED tree_sum(SUMMED v, const uint parts) {
	[[unroll]] for (uint by = 1u; by < parts; by *= 2u) v += subgroupShuffleXor(v, by);
	return v;
}
#endif

// ---- the state

// Word of element (row, column) of the invocation's quad i of rows, where it has these.
uint state_word(uint head, uint i, uint row, uint c) {
	return (head * K_DIM + (i * SLICES + SLICE) * 4u + row) * p.v_dim + gl_WorkGroupID.x * COLS + COLUMN + c;
}
bool has_column(uint c) { return gl_WorkGroupID.x * COLS + COLUMN + c < p.v_dim; }
bool has_quad(uint i) { return KEYS == K_DIM || (i * SLICES + SLICE) * 4u < K_DIM; }

uint state_at(uint i, uint c) { return (i * LANE_COLS + c) * 4u; }
vec4 state_quad(uint i, uint c) {
	const uint at = state_at(i, c);
	return vec4(state[at], state[at + 1u], state[at + 2u], state[at + 3u]);
}
void set_state_quad(uint i, uint c, vec4 s) {
	[[unroll]] for (uint r = 0u; r < 4u; ++r) state[state_at(i, c) + r] = s[r];
}
void load_state(uint head, uint from_at) {
	for (uint i = 0u; i < QUADS; ++i)
		[[unroll]] for (uint c = 0u; c < LANE_COLS; ++c) {
			set_state_quad(i, c, vec4(0));
			if (from_at != STATE_ZERO && has_column(c) && has_quad(i))
				[[unroll]] for (uint r = 0u; r < 4u; ++r)
					state[state_at(i, c) + r] = from[KV_FROM + from_at + state_word(head, i, r, c)];
		}
}
void store_state(uint head, uint to_at) {
	[[unroll]] for (uint c = 0u; c < LANE_COLS; ++c)
		if (has_column(c))
			for (uint i = 0u; i < QUADS; ++i)
				if (has_quad(i))
					[[unroll]] for (uint r = 0u; r < 4u; ++r)
						to[KV_TO + to_at + state_word(head, i, r, c)] = state[state_at(i, c) + r];
}

// ---- keys, queries and values of n tokens from `row` on; n >= 1

float next_key[AHEAD ? LOADS : 1u], next_query[AHEAD ? LOADS : 1u], next_value[AHEAD ? VALUE_LOADS : 1u];

uint key_offset(uint i) { return KEYS == K_DIM ? i % KEYS : min(i % KEYS, K_DIM - 1u); }
float key_or_zero(uint i, float v) { return KEYS == K_DIM || i % KEYS < K_DIM ? v : 0.0; }
uint value_offset(uint i) { return min(gl_WorkGroupID.x * COLS + i % COLS, p.v_dim - 1u); }

// The last token stands for those that are missing. Of a decode step the first load of each array is all.
bool needs_more(uint n) { return n * (KEYS > COLS ? KEYS : COLS) > LOCAL_X; }
void load_token(uint j, uint row, uint n) {
	if (j < LOADS) {
		const uint i = LANE + j * LOCAL_X, t = row + min(i / KEYS, n - 1u);
		next_key[j] = x[key_at + t * key_stride + key_offset(i)];
		next_query[j] = x[query_at + t * key_stride + key_offset(i)];
	}
	if (j < VALUE_LOADS) {
		const uint i = LANE + j * LOCAL_X;
		next_value[j] = x[value_at + (row + min(i / COLS, n - 1u)) * value_stride + value_offset(i)];
	}
}
void load_tokens(uint row, uint n) {
	load_token(0u, row, n);
	if (needs_more(n))
		[[unroll]] for (uint j = 1u; j < MOST_LOADS; ++j) load_token(j, row, n);
}
void store_token(uint j) {
	const uint i = LANE + j * LOCAL_X;
	if (j < LOADS && (TILE * KEYS % LOCAL_X == 0u || i < TILE * KEYS))
		key[i / 4u][i % 4u] = key_or_zero(i, next_key[j]), query[i / 4u][i % 4u] = key_or_zero(i, next_query[j]);
	if (j < VALUE_LOADS && (TILE * COLS % LOCAL_X == 0u || i < TILE * COLS)) value[i] = next_value[j];
}
void store_tokens(uint row, uint n) {
	if (AHEAD) {
		store_token(0u);
		if (needs_more(n))
			[[unroll]] for (uint j = 1u; j < MOST_LOADS; ++j) store_token(j);
		return;
	}
	for (uint i = LANE; i < n * KEYS; i += LOCAL_X) {
		key[i / 4u][i % 4u] = key_or_zero(i, x[key_at + (row + i / KEYS) * key_stride + key_offset(i)]);
		query[i / 4u][i % 4u] = key_or_zero(i, x[query_at + (row + i / KEYS) * key_stride + key_offset(i)]);
	}
	for (uint i = LANE; i < n * COLS; i += LOCAL_X)
		value[i] = x[value_at + (row + i / COLS) * value_stride + value_offset(i)];
}

uint quad_at(uint t, uint i) { return t * (KEYS / 4u) + i * SLICES + SLICE; } // of token t, the invocation's quad i
