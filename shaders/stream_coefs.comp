// Coefficients of hyper-connections between m streams (op::StreamCoefs): of each row sigmoids, and a matrix whose rows
// and columns have sums of about 1 (Sinkhorn and Knopp).
//
// 0 pre (rows, m) f32 | 1 post (rows, m) f32 | 2 mix (rows, m, m) f32 | 3 x (rows, n) f32 | 4 scale f32 | 5 base (n)
// f32; post and mix are written where x has their parts
// grid     a row for each invocation, row = x + y * row_stride
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"
#include "shared/streams.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { StreamCoefsPush p; };

layout(binding = 0) restrict writeonly buffer Pre { float pre[]; };
layout(binding = 1) restrict writeonly buffer Post { float post[]; };
layout(binding = 2) restrict writeonly buffer Mix { float mixed[]; };
layout(binding = 3) restrict readonly buffer X { float x[]; };
layout(binding = 4) restrict readonly buffer Scale { float scale[]; };
layout(binding = 5) restrict readonly buffer Base { float base[]; };

const uint M = KV_MOST_STREAMS;
uint row_at = 0;
float logit(uint part, uint i) { return scale[KV_AT(4) + part] * x[row_at + i] + base[KV_AT(5) + i]; }
float sigmoid(float v) { return 1.0 / (1.0 + exp(-v)); }

void main() {
	const uint row = gl_GlobalInvocationID.x + gl_WorkGroupID.y * p.row_stride, m = p.m;
	if (row >= p.rows || gl_GlobalInvocationID.x >= p.row_stride) return;
	row_at = KV_AT(3) + row * p.n;
	for (uint i = 0; i < m; ++i) {
		pre[KV_AT(0) + row * m + i] = sigmoid(logit(0, i)) + p.eps;
		if (p.n > m) post[KV_AT(1) + row * m + i] = p.post_scale * sigmoid(logit(1, m + i)) + p.post_eps;
	}
	if (p.n <= 2 * m) return;
	float c[M][M]; // by `from`, then by `to`; 0 of streams that there are not
	[[unroll]] for (uint from = 0; from < M; ++from) {
		float most = 0.0, sum = 0.0;
		[[unroll]] for (uint to = 0; to < M; ++to) {
			const bool is = from < m && to < m;
			c[from][to] = is ? logit(2, (2 + from) * m + to) : 0.0;
			if (is) most = to == 0 ? c[from][to] : max(most, c[from][to]);
		}
		[[unroll]] for (uint to = 0; to < M; ++to) {
			c[from][to] = from < m && to < m ? exp(c[from][to] - most) : 0.0;
			sum += c[from][to];
		}
		[[unroll]] for (uint to = 0; to < M; ++to) c[from][to] = from < m && to < m ? c[from][to] / sum + p.eps : 0.0;
	}
	[[dont_unroll]] for (uint round = 0; round < p.rounds; ++round) {
		if (round != 0) {
			[[unroll]] for (uint from = 0; from < M; ++from) {
				float sum = p.eps;
				[[unroll]] for (uint to = 0; to < M; ++to) sum += c[from][to];
				[[unroll]] for (uint to = 0; to < M; ++to) if (from < m) c[from][to] /= sum;
			}
		}
		[[unroll]] for (uint to = 0; to < M; ++to) {
			float sum = p.eps;
			[[unroll]] for (uint from = 0; from < M; ++from) sum += c[from][to];
			[[unroll]] for (uint from = 0; from < M; ++from) if (to < m) c[from][to] /= sum;
		}
	}
	[[unroll]] for (uint to = 0; to < M; ++to)
		[[unroll]] for (uint from = 0; from < M; ++from)
			if (to < m && from < m) mixed[KV_AT(2) + (row * m + to) * m + from] = c[from][to];
}
