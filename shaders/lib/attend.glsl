// Online softmax over tiles of tokens, and the weighted sum of V: what attend.comp and attend_prompt.comp share.
//
// A workgroup serves QUERIES queries that read the same keys and values. It takes tokens in tiles; a lane owns a quad
// (4 consecutive tokens) of a tile while it works on keys, and 8 channels of every V_ROWS-th quad while it sums values.
//
// Two builds. TEXEL, for drivers on a processor: the workgroup is one subgroup, big buffers are read as texels (their
// storage buffer loads are an order of magnitude slower), and weights pass between lanes by shuffles. Else: storage
// buffers, weights pass through shared memory; the maximum of a tile by subgroup arithmetic unless NO_SUBGROUP.
//
// The including file defines QUERIES, K_BITS and V_BITS, declares v_codes, and supplies:
//   uint query_at(uint j)      first 16-byte piece of query j in q; any valid one where there is no query j
#extension GL_EXT_control_flow_attributes : require
#ifndef NO_SUBGROUP
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif

#ifdef TEXEL
#define LOAD4(name, i) texelFetch(name, int(i))
#define LANE gl_SubgroupInvocationID
#else
#define LOAD4(name, i) name[i]
#define LANE gl_LocalInvocationID.x
#endif

const uint CHUNKS = HEAD_DIM / 8u;                                 // pieces of a V row that a lane takes at once
const uint ROW_LANES = CHUNKS < LOCAL_X ? CHUNKS : LOCAL_X;
const uint V_ROWS = LOCAL_X / ROW_LANES;                             // V rows read side by side
const uint OWN = (CHUNKS + ROW_LANES - 1u) / ROW_LANES;            // chunks of a lane
const uint QUADS = LOCAL_X;                                        // quads in a tile
const uint Q_PIECES = HEAD_DIM / 4u;                               // 16-byte pieces of a query
// The maximum over no token. Finite, so that no driver's fast arithmetic can make a NaN of it.
const float NO_TOKEN = -1e30;

vec4 acc[QUERIES * OWN * 2]; // [query][own chunk][half]: sum of weight * value
vec4 score[QUERIES];         // of the lane's quad; after the softmax its weights
float top[QUERIES];          // maximum score so far, the same in all lanes
float total[QUERIES];        // sum of weights; this lane's share until state_finish()

#ifdef TEXEL
const uint Q_FETCH = (QUERIES * 2u + LOCAL_X - 1u) / LOCAL_X;      // fetches that bring 8 channels of all queries
uvec4 q_part[Q_FETCH];       // lane 2 j + i of fetch f: channels 4 i .. 4 i + 3 of query f * LOCAL_X / 2 + j
#else
shared vec4 q_s[QUERIES * Q_PIECES];
shared vec4 weight_s[QUERIES * QUADS];
shared uvec2 quad_s[QUADS];  // where the quad's V begins (16-byte pieces, or words where V is packed), live bits
shared vec4 acc_s[V_ROWS > 1u ? LOCAL_X * 2u : 1u];
shared float reduce_s[QUERIES * LOCAL_X];
#endif

void state_clear() {
	[[unroll]] for (uint i = 0; i < QUERIES * OWN * 2u; i++) acc[i] = vec4(0);
	[[unroll]] for (uint j = 0; j < QUERIES; j++) {
		top[j] = NO_TOKEN;
		total[j] = 0;
	}
}

// ---- queries

#ifdef TEXEL
void queries_stage() {}
// Brings channels 8 step .. 8 step + 7 of every query.
void queries_step(uint step) {
	[[unroll]] for (uint f = 0; f < Q_FETCH; f++)
		q_part[f] = LOAD4(q, query_at(f * (LOCAL_X / 2u) + LANE / 2u) + step * 2u + LANE % 2u);
}
vec4 query(uint j, uint step, uint half_) {
	const uint f = j * 2u / LOCAL_X, from = j * 2u % LOCAL_X + half_;
	return uintBitsToFloat(uvec4(subgroupShuffle(q_part[f].x, from), subgroupShuffle(q_part[f].y, from),
								 subgroupShuffle(q_part[f].z, from), subgroupShuffle(q_part[f].w, from)));
}
#else
void queries_stage() {
	for (uint i = LANE; i < QUERIES * Q_PIECES; i += LOCAL_X)
		q_s[i] = uintBitsToFloat(LOAD4(q, query_at(i / Q_PIECES) + i % Q_PIECES));
	barrier();
}
void queries_step(uint step) {}
vec4 query(uint j, uint step, uint half_) { return q_s[j * Q_PIECES + step * 2u + half_]; }
#endif

// score += q . k over 8 channels; k[c] holds channel 8 step + c of the quad's 4 tokens.
void score_step(uint step, vec4 k[8]) {
	queries_step(step);
	[[unroll]] for (uint j = 0; j < QUERIES; j++)
		[[unroll]] for (uint i = 0; i < 2u; i++) {
			const vec4 q4 = query(j, step, i);
			score[j] += q4.x * k[i * 4u] + q4.y * k[i * 4u + 1u] + q4.z * k[i * 4u + 2u] + q4.w * k[i * 4u + 3u];
		}
}

// ---- reductions over the workgroup

#ifdef TEXEL
void reduce(inout float x[QUERIES], const bool maximum) {
	[[unroll]] for (uint j = 0; j < QUERIES; j++)
		[[unroll]] for (uint b = 0; b < 6u; b++)
			if (1u << b < LOCAL_X) {
				const float other = subgroupShuffleXor(x[j], 1u << b);
				x[j] = maximum ? max(x[j], other) : x[j] + other;
			}
}
#else
// Subgroups first where there are any; a workgroup of one subgroup needs no memory.
void reduce(inout float x[QUERIES], const bool maximum) {
#ifdef NO_SUBGROUP
	const uint n = LOCAL_X, at = LANE;
	const bool writes = true;
#else
	[[unroll]] for (uint j = 0; j < QUERIES; j++) x[j] = maximum ? subgroupMax(x[j]) : subgroupAdd(x[j]);
	if (LOCAL_X <= SUBGROUP) return;
	const uint n = gl_NumSubgroups, at = gl_SubgroupID;
	const bool writes = subgroupElect();
#endif
	if (writes)
		[[unroll]] for (uint j = 0; j < QUERIES; j++) reduce_s[j * LOCAL_X + at] = x[j];
	barrier();
	for (uint j = LANE; j < QUERIES; j += LOCAL_X) {
		float r = reduce_s[j * LOCAL_X];
		for (uint i = 1; i < n; i++) r = maximum ? max(r, reduce_s[j * LOCAL_X + i]) : r + reduce_s[j * LOCAL_X + i];
		reduce_s[j * LOCAL_X] = r;
	}
	barrier();
	[[unroll]] for (uint j = 0; j < QUERIES; j++) x[j] = reduce_s[j * LOCAL_X];
	barrier();
}
#endif

// ---- a tile

// Turns scores (NO_TOKEN where a query does not see a token) into weights, and scales what was summed before.
void tile_softmax() {
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
	}
}

// Adds the values of the tile. `at`: where V of the lane's quad begins, always inside the buffer; bit i of `live`: its
// token i has values.
void tile_values(uint at, uint live) {
	const uint row = LANE / ROW_LANES, chunk = LANE % ROW_LANES;
#ifndef TEXEL
	[[unroll]] for (uint j = 0; j < QUERIES; j++) weight_s[j * QUADS + LANE] = score[j];
	quad_s[LANE] = uvec2(at, live);
	barrier();
#endif
	for (uint i = 0; i < (QUADS + V_ROWS - 1u) / V_ROWS; i++) {
		const uint quad = min(i * V_ROWS + row, QUADS - 1u);
#ifdef TEXEL
		vec4 weight[QUERIES];
		const uint v_at = subgroupShuffle(at, quad);
		uint v_live = subgroupShuffle(live, quad);
		[[unroll]] for (uint j = 0; j < QUERIES; j++) weight[j] = subgroupShuffle(score[j], quad);
#else
		const uint v_at = quad_s[quad].x;
		uint v_live = quad_s[quad].y;
#endif
		if (i * V_ROWS + row >= QUADS || row >= V_ROWS) v_live = 0;
		[[unroll]] for (uint o = 0; o < OWN; o++) {
			const uint c = min(chunk + o * ROW_LANES, CHUNKS - 1u);
			[[unroll]] for (uint t = 0; t < 4u; t++) {
				// A token that is not live may lie outside the buffer, or hold anything, infinities included.
				const uint mask = 0u - (v_live >> t & 1u);
				const uvec4 w = LOAD4(v_codes, v_at + (t * (HEAD_DIM / 8u) & mask) + c) & uvec4(mask);
				const vec4 low = vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y));
				const vec4 high = vec4(unpackHalf2x16(w.z), unpackHalf2x16(w.w));
				[[unroll]] for (uint j = 0; j < QUERIES; j++) {
#ifdef TEXEL
					const float u = weight[j][t];
#else
					const float u = weight_s[j * QUADS + quad][t];
#endif
					acc[(j * OWN + o) * 2u] += u * low;
					acc[(j * OWN + o) * 2u + 1u] += u * high;
				}
			}
		}
	}
#ifndef TEXEL
	barrier(); // the next tile writes weight_s
#endif
}

// Sums over lanes: afterwards total is complete everywhere, acc in the lanes of row 0.
void state_finish() {
	reduce(total, false);
	if (V_ROWS == 1u) return;
	const uint row = LANE / ROW_LANES;
	[[unroll]] for (uint i = 0; i < QUERIES * OWN; i++) {
		vec4 low = acc[i * 2u], high = acc[i * 2u + 1u];
#ifdef TEXEL
		for (uint r = 1; r < V_ROWS; r++) {
			const uint from = (LANE + r * ROW_LANES) % LOCAL_X;
			acc[i * 2u] += subgroupShuffle(low, from);
			acc[i * 2u + 1u] += subgroupShuffle(high, from);
		}
#else
		acc_s[LANE * 2u] = low;
		acc_s[LANE * 2u + 1u] = high;
		barrier();
		if (row == 0)
			for (uint r = 1; r < V_ROWS; r++) {
				low += acc_s[(LANE + r * ROW_LANES) * 2u];
				high += acc_s[(LANE + r * ROW_LANES) * 2u + 1u];
			}
		barrier();
		acc[i * 2u] = low;
		acc[i * 2u + 1u] = high;
#endif
	}
}
