// Elementwise activation: v = scale * f(x) * y, then v = cap * tanh(v / cap) if there is a cap; out = v or out + v.
//
// dims     out, y (n) f32, x (n / each) f32; without y, x is bound in its place
// grid     one invocation for 4 elements: workgroup = x + y * row_stride
// FLAGS    ACTIVATE_*: f in the lowest bits, then one bit per option
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { ActivatePush p; };
layout(std430, binding = 0) buffer Out { float out_x[]; }; // may be x or y
layout(std430, binding = 1) readonly buffer X { float x[]; };
layout(std430, binding = 2) readonly buffer Y { float y[]; };

#include "lib/softplus.glsl"

// x > 0: positive * x^2 + linear * x; else negative * (exp(min(x, limit)) - 1 - x) + linear * x
float xielu(float x) {
	if (x > 0.0) return x * (p.parameters[0] * x + p.parameters[2]);
	const float m = min(x, p.parameters[3]);
	// exp(m) - 1 - m; near 0, where the difference loses digits, by its Taylor series
	const float s = m * m * 0.5 * (1.0 + m / 3.0 * (1.0 + m / 4.0 * (1.0 + m / 5.0 * (1.0 + m / 6.0))));
	return p.parameters[1] * ((m > -0.25 ? s : exp(m) - 1.0 - m) + (m - x)) + p.parameters[2] * x;
}

// Its tail by Abramowitz and Stegun, 7.1.26: off by at most 8e-8.
float gelu(float v) {
	const float x = abs(v) * 0.7071067811865476, t = 1.0 / (1.0 + 0.3275911 * x);
	const float sum = 0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)));
	const float tail = 0.5 * t * sum * exp(-x * x);
	return v < 0.0 ? v * tail : v - v * tail;
}

float activation(float v) {
	const uint f = FLAGS & ACTIVATE_FUNCTION;
	if (f == ACTIVATE_SILU) return v / (1.0 + exp(-v));
	// 0.5 v (1 + tanh(u)) = v / (1 + exp(-2u)), u = sqrt(2 / pi) (v + 0.044715 v^3)
	if (f == ACTIVATE_GELU_TANH) return v / (1.0 + exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)));
	if (f == ACTIVATE_RELU2) return v > 0.0 ? v * v : 0.0;
	if (f == ACTIVATE_SIGMOID) return 1.0 / (1.0 + exp(-v));
	if (f == ACTIVATE_XIELU) return xielu(v);
	if (f == ACTIVATE_GELU_QUICK) return v / (1.0 + exp(-1.702 * v));
	if (f == ACTIVATE_CLAMP) return min(max(v, p.parameters[0]), p.parameters[1]);
	if (f == ACTIVATE_SOFTPLUS) return softplus(v);
	if (f == ACTIVATE_RELU) return max(v, 0.0);
	if (f == ACTIVATE_GELU) return gelu(v);
	return v;
}

// Drivers may compute tanh() as sinh() / cosh(), which is NaN where those overflow. Where 1 - 2 / (exp(2x) + 1) loses
// digits, the first terms of the Taylor series are used.
float capped(float v) {
	const float x = abs(v) / p.cap, x2 = x * x;
	const float t = x < 0.1 ? x * (1.0 - x2 * (1.0 / 3.0 - x2 * (2.0 / 15.0))) : 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
	return v < 0.0 ? -p.cap * t : p.cap * t;
}

void main() {
	const uint group = gl_WorkGroupID.x + gl_WorkGroupID.y * p.row_stride;
	for (uint k = 0; k < 4; ++k) {
		const uint i = (group * 4 + k) * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
		if (i >= p.n) return;
		float v = p.scale * activation(x[KV_AT(1) + ((FLAGS & ACTIVATE_EACH) != 0 ? i / p.each : i)]);
		if ((FLAGS & ACTIVATE_TIMES) != 0) v *= y[KV_AT(2) + i];
		if ((FLAGS & ACTIVATE_CAP) != 0) v = capped(v);
		const uint to = KV_AT(0) + i;
		out_x[to] = (FLAGS & ACTIVATE_ADD) != 0 ? out_x[to] + v : v;
	}
}
