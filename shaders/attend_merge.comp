// Merges the partial states of each row into the attention output.
//
//   out = sum_i w_i acc_i / sum_i w_i sum_i,  w_i = exp(max_i - max_j max_j);  0 where no part saw a token
//
//   binding  name      shape
//   0        result    (T, n_heads, HEAD_DIM) f32, written
//   1        parts     (n_parts, n_heads, HEAD_DIM + 2) f32: sum of weight * value, maximum score, sum of weights
//   2        row_parts (T, 2) u32: first part, parts of a row
//   3        lse       (T, n_heads) f32, written: log sum exp of a row's scores; only with MERGE_LSE
//   4        sinks     (n_heads) f32; only with MERGE_SINKS
//
// Grid: x = head, y = row. A lane sums two channels over every SLICES-th part, with loads of up to 8 parts in flight;
// slices are added in order at the end. Rows of at most MERGE_FEW parts are added in index order, as attend.comp does.
// Needs: LOCAL_X a power of two, HEAD_DIM even.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/spec.h"
#include "shared/push.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 32;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;

layout(push_constant) uniform Push { AttendMergePush p; };
layout(std430, binding = 0) writeonly restrict buffer Result { vec2 result[]; };
layout(std430, binding = 1) readonly restrict buffer Parts { vec2 parts[]; };
layout(std430, binding = 2) readonly restrict buffer RowParts { uint row_parts[]; };
layout(std430, binding = 3) writeonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 4) readonly restrict buffer Sinks { float sinks[]; };
const bool SINKS = (FLAGS & MERGE_SINKS) != 0u;
#include "lib/merge.glsl"
#include "lib/reduce.glsl"

const bool WANTS_LSE = (FLAGS & MERGE_LSE) != 0u;
const uint ROW_LANES = PAIRS < LOCAL_X ? PAIRS : LOCAL_X; // lanes side by side over a row's channels
const uint SLICES = LOCAL_X / ROW_LANES;
const uint AHEAD = 8;
shared float weight_s[LOCAL_X];
shared vec2 sum_s[LOCAL_X];

void main() {
	const uint lane = gl_LocalInvocationID.x, row = gl_WorkGroupID.y, head = gl_WorkGroupID.x;
	const uint first = row_parts[KV_AT(2) + row * 2], n = row_parts[KV_AT(2) + row * 2 + 1];
	const uint stride = p.n_heads * (PAIRS + 1), at = KV_AT(1) / 2 + first * stride + head * (PAIRS + 1);
	const uint out_at = KV_AT(0) / 2 + (row * p.n_heads + head) * PAIRS;
	const float sink = SINKS ? sinks[KV_AT(4) + head] : NO_TOKEN;
	float top = sink, weights = SINKS ? 1.0 : 0.0;

	if (n <= MERGE_FEW) {
		for (uint pair = lane; pair < PAIRS; pair += LOCAL_X)
			result[out_at + pair] = n == 0 ? vec2(0) : merge_few(at, stride, n, pair, sink, top, weights);
	} else {
		for (uint i = lane; i < n; i += LOCAL_X) top = max(top, parts[at + i * stride + PAIRS].x);
		top = workgroup_max(top);
		const uint slice = lane / ROW_LANES;
		for (uint pair0 = 0; pair0 < PAIRS; pair0 += ROW_LANES) {
			const uint pair = pair0 + lane % ROW_LANES, from = at + min(pair, PAIRS - 1);
			vec2 sum = vec2(0);
			weights = 0;
			for (uint batch = 0; batch < n; batch += LOCAL_X) {
				const uint here = min(LOCAL_X, n - batch);
				float w = 0;
				if (lane < here) {
					const vec2 state = parts[at + (batch + lane) * stride + PAIRS];
					w = exp(state.x - top);
					weights += w * state.y;
				}
				barrier(); // all lanes have read the previous batch
				weight_s[lane] = w;
				barrier();
				for (uint i = slice < SLICES ? slice : here; i < here; i += SLICES * AHEAD) {
					vec2 x[AHEAD];
					[[unroll]] for (uint k = 0; k < AHEAD; k++)
						x[k] = parts[from + (batch + min(i + k * SLICES, here - 1)) * stride];
					[[unroll]] for (uint k = 0; k < AHEAD; k++)
						sum += (i + k * SLICES < here ? weight_s[min(i + k * SLICES, LOCAL_X - 1)] : 0.0) * x[k];
				}
			}
			weights = workgroup_sum(weights);
			if (SINKS) weights += exp(sink - top);
			sum_s[lane] = sum;
			barrier();
			if (slice == 0 && pair < PAIRS) {
				for (uint i = 1; i < SLICES; i++) sum += sum_s[lane + i * ROW_LANES];
				result[out_at + pair] =
				    weights > 0 ? sum / weights : vec2(weights); // 0, or a NaN that must be kept
			}
		}
	}
	// Lane 0 has pair 0, so it has seen the weights in both cases.
	if (WANTS_LSE && lane == 0)
		lse[KV_AT(3) + row * p.n_heads + head] = weights > 0 ? top + log(weights) : uintBitsToFloat(MINUS_INF);
}
