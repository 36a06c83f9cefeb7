// x[i][t] += sum over j of w[t][i][j] * y[j][t], of each token t and stream i; without `adds`, x[i][t] = sum.
//
// 0 x f32, from row x_first on of each of m streams | 1 y f32, from row y_first on of each of k streams; may be x
// 2 w (rows, m, k) f32; dim a multiple of 4. Strides are those of StreamRows: in rows of dim elements
// grid     x: dim / 4 / LOCAL_X, row = y + z * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/streams.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { StreamSumPush p; };

layout(binding = 0) buffer X { vec4 x[]; };
layout(binding = 1) readonly buffer Y { vec4 y[]; };
layout(binding = 2) restrict readonly buffer W { float w[]; };

void main() {
	const uint c = gl_GlobalInvocationID.x, n = p.dim / 4u, row = gl_WorkGroupID.y + gl_WorkGroupID.z * p.row_stride;
	if (c >= n || row >= p.rows) return;
	const uint x_row = (p.x_first + row) * p.x_row_stride, y_row = (p.y_first + row) * p.y_row_stride;
	vec4 v[KV_MOST_STREAMS];
	[[unroll]] for (uint j = 0u; j < KV_MOST_STREAMS; ++j)
		v[j] = j < p.k ? y[KV_AT(1) / 4u + (j * p.y_stream_stride + y_row) * n + c] : vec4(0.0);
	const uint weights = KV_AT(2) + row * p.m * p.k;
	[[unroll]] for (uint i = 0u; i < KV_MOST_STREAMS; ++i) {
		if (i >= p.m) break;
		const uint at = KV_AT(0) / 4u + (i * p.x_stream_stride + x_row) * n + c;
		vec4 sum = vec4(0.0);
		if (p.adds != 0u) sum = x[at];
		[[unroll]] for (uint j = 0u; j < KV_MOST_STREAMS; ++j)
			if (j < p.k) sum = fma(vec4(w[weights + i * p.k + j]), v[j], sum);
		x[at] = sum;
	}
}
