// Merges the partial states of each row, in index order, into the attention output.
//
//   out = sum_i w_i acc_i / sum_i w_i sum_i,  w_i = exp(max_i - max_j max_j);  0 where no part saw a token
//
//   binding  name      shape
//   0        result    (T, n_heads, HEAD_DIM) f32, written
//   1        parts     (n_parts, n_heads, HEAD_DIM + 2) f32: sum of weight * value, maximum score, sum of weights
//   2        row_parts (T, 2) u32: first part, parts of a row
//   3        lse       (T, n_heads) f32, written: log sum exp of a row's scores; only with FLAGS & 1
//
// Grid: x = head, y = row. A lane owns a channel, and every SLICES-th part of it; slices are added in order at the end.
// Needs: LOCAL_X a power of two.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/spec.h"
#include "shared/push.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 32;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;

layout(push_constant) uniform Push { AttendMergePush p; };
layout(std430, binding = 0) writeonly restrict buffer Result { float result[]; };
layout(std430, binding = 1) readonly restrict buffer Parts { float parts[]; };
layout(std430, binding = 2) readonly restrict buffer RowParts { uint row_parts[]; };
layout(std430, binding = 3) writeonly restrict buffer Lse { float lse[]; };

const uint CHANNELS = HEAD_DIM < LOCAL_X ? HEAD_DIM : LOCAL_X; // side by side
const uint SLICES = LOCAL_X / CHANNELS;
shared float lane_s[LOCAL_X];
shared float lane2_s[LOCAL_X];

void main() {
	const uint lane = gl_LocalInvocationID.x, row = gl_WorkGroupID.y, head = gl_WorkGroupID.x;
	const uint first = row_parts[KV_AT(2) + row * 2], n = row_parts[KV_AT(2) + row * 2 + 1];
	const uint stride = p.n_heads * (HEAD_DIM + 2), at = KV_AT(1) + first * stride + head * (HEAD_DIM + 2);
	const uint out_at = KV_AT(0) + (row * p.n_heads + head) * HEAD_DIM;

	float top = -1e30; // of the lane's share of the parts, then of all
	for (uint i = lane; i < n; i += LOCAL_X) top = max(top, parts[at + i * stride + HEAD_DIM]);
	lane_s[lane] = top;
	barrier();
	const uint used = min(n, LOCAL_X);
	for (uint i = 0; i < used; i++) top = max(top, lane_s[i]);

	const uint slice = lane / CHANNELS, channel = lane % CHANNELS;
	for (uint c0 = 0; c0 < HEAD_DIM; c0 += CHANNELS) {
		const uint c = c0 + channel;
		float sum = 0, weights = 0;
		if (c < HEAD_DIM && slice < SLICES)
			for (uint i = slice; i < n; i += SLICES) {
				const float w = exp(parts[at + i * stride + HEAD_DIM] - top);
				sum += w * parts[at + i * stride + c];
				weights += w * parts[at + i * stride + HEAD_DIM + 1];
			}
		barrier();
		lane_s[lane] = sum;
		lane2_s[lane] = weights;
		barrier();
		if (slice == 0 && c < HEAD_DIM) {
			for (uint i = 1; i < SLICES; i++) {
				sum += lane_s[lane + i * CHANNELS];
				weights += lane2_s[lane + i * CHANNELS];
			}
			result[out_at + c] = weights > 0 ? sum / weights : 0;
			if ((FLAGS & 1u) != 0u && c == 0) lse[KV_AT(3) + row * p.n_heads + head] = weights > 0 ? top + log(weights) : uintBitsToFloat(0xff800000u);
		}
	}
}
