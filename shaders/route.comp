// The experts that each row chooses, and the weights of their outputs: Backend::route().
//
// 0 ids (T, used) u32, written | 1 weights (T, used) f32, written | 2 logits (T, n_experts) f32
// 3 bias (n_experts) f32 | 4 expert_scale (n_experts) f32
// 5 of_tokens (tokens, used) u32, with ROUTE_BY_TOKEN a token's experts | 6 tokens (T) u32, those of the rows
// grid     one workgroup per row: row = x + y * row_stride
// An expert's rank is the number of experts that come before it, so nothing is sorted and no subgroups are needed.
// FLAGS: ROUTE_*.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/experts.h"
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { RoutePush p; };

layout(binding = 0) restrict writeonly buffer Ids { uint ids[]; };
layout(binding = 1) restrict writeonly buffer Weights { float weights[]; };
layout(binding = 2) restrict readonly buffer Logits { float logits[]; };
layout(binding = 3) restrict readonly buffer Bias { float bias[]; };
layout(binding = 4) restrict readonly buffer ExpertScale { float expert_scale[]; };
layout(binding = 5) restrict readonly buffer OfTokens { uint of_tokens[]; };
layout(binding = 6) restrict readonly buffer Tokens { uint tokens[]; };
#include "lib/float_order.glsl"
#include "lib/softplus.glsl"

const bool SIGMOID = (FLAGS & ROUTE_SIGMOID) != 0u, NORMALISED = (FLAGS & ROUTE_NORMALISED) != 0u;
const bool BIASED = (FLAGS & ROUTE_BIAS) != 0u, NEAR = (FLAGS & ROUTE_NEAR) != 0u;
const bool SOFTPLUS = (FLAGS & ROUTE_SOFTPLUS) != 0u, BY_TOKEN = (FLAGS & ROUTE_BY_TOKEN) != 0u;
const bool SCALED = (FLAGS & ROUTE_EXPERT_SCALE) != 0u;
shared float weight_s[KV_MOST_EXPERTS];
shared float choice_s[KV_MOST_EXPERTS]; // what experts are ranked by
shared uint order_s[KV_MOST_EXPERTS];   // the same as integers that order as floats do
shared uint group_s[KV_MOST_GROUPS];
shared float chosen_s[KV_MOST_USED]; // weights of the chosen
shared float scale_s[SCALED ? KV_MOST_USED : 1u];

// Group g's largest element of choice_s; with a bias the sum of the two largest.
float group_choice(uint g) {
	const uint n = p.n_experts / p.n_groups;
	float first = uintBitsToFloat(0xff800000u), second = first;
	for (uint e = g * n; e < (g + 1u) * n; ++e) {
		const float c = choice_s[e];
		if (c > first) second = first, first = c;
		else if (c > second) second = c;
	}
	return BIASED ? first + second : first;
}

// Weight of chosen expert e: its softmax over e and the experts near it that come after it.
float near_weight(uint e) {
	const float top = choice_s[e];
	if (order_s[e] == ~0u) return uintBitsToFloat(0x7fc00000u); // exp() of a NaN may be anything
	float sum = 0.0;
	for (uint i = 0u; i < p.n_experts; ++i) {
		const bool before = i < e ? order_s[i] >= order_s[e] : order_s[i] > order_s[e];
		const float s = choice_s[i], away = top - s;
		if (!before && !(away > KV_NEAR * max(abs(s), top))) sum += exp(-away);
	}
	return 1.0 / sum;
}

void main() {
	const uint lane = gl_LocalInvocationIndex, lanes = gl_WorkGroupSize.x, E = p.n_experts;
	const uint row = gl_WorkGroupID.x + gl_WorkGroupID.y * p.row_stride;
	if (row >= p.rows) return; // the same for the whole workgroup
	for (uint e = lane; e < E; e += lanes) choice_s[e] = logits[KV_AT(2) + row * E + e];
	barrier();
	float sum = 0.0;
	if (!SIGMOID && !SOFTPLUS) {
		float top = choice_s[0];
		for (uint e = 1u; e < E; ++e) top = max(top, choice_s[e]);
		for (uint e = lane; e < E; e += lanes) weight_s[e] = exp(choice_s[e] - top);
		barrier();
		for (uint e = 0u; e < E; ++e) sum += weight_s[e];
		barrier();
	}
	for (uint e = lane; e < E; e += lanes) {
		const float logit = choice_s[e];
		float weight;
		if (SIGMOID) weight = 1.0 / (1.0 + exp(-logit));
		else if (SOFTPLUS) weight = sqrt(softplus(logit));
		else weight = weight_s[e] / sum;
		if (float_order(logit) == ~0u) weight = uintBitsToFloat(0x7fc00000u); // exp() of a NaN may be anything
		weight_s[e] = weight;
		// Without a bias logits decide: both functions increase with them, and logits have no further rounding.
		if (BIASED) choice_s[e] = weight + bias[KV_AT(3) + e];
		order_s[e] = float_order(choice_s[e]);
	}
	barrier();
	if (p.n_groups > 1u) { // experts outside of the best groups come last
		for (uint g = lane; g < p.n_groups; g += lanes) group_s[g] = float_order(group_choice(g));
		barrier();
		for (uint e = lane; e < E; e += lanes) {
			const uint own = e / (E / p.n_groups);
			uint before = 0u;
			for (uint g = 0u; g < p.n_groups; ++g)
				before += uint(group_s[g] > group_s[own] || (group_s[g] == group_s[own] && g < own));
			if (before >= p.used_groups) order_s[e] = 0u;
		}
		barrier();
	}
	for (uint j = lane; BY_TOKEN && j < p.used; j += lanes) {
		const uint e = of_tokens[KV_AT(5) + tokens[KV_AT(6) + row] * p.used + j];
		ids[KV_AT(0) + row * p.used + j] = e;
		chosen_s[j] = weight_s[e];
	}
	for (uint e = lane; !BY_TOKEN && e < E; e += lanes) {
		const uint own = order_s[e];
		uint before = 0u;
		for (uint i = 0u; i < e; ++i) before += uint(order_s[i] >= own);
		for (uint i = e + 1u; i < E; ++i) before += uint(order_s[i] > own);
		if (before >= p.used) continue;
		ids[KV_AT(0) + row * p.used + before] = e;
		chosen_s[before] = NEAR ? near_weight(e) : weight_s[e];
		if (SCALED) scale_s[before] = expert_scale[KV_AT(4) + e];
	}
	barrier();
	if (lane >= p.used) return;
	float all = 0.0;
	for (uint j = 0u; j < p.used; ++j) all += chosen_s[j];
	const float factor = NORMALISED ? p.scale / max(all, 1e-20) : p.scale;
	for (uint j = lane; j < p.used; j += lanes)
		weights[KV_AT(1) + row * p.used + j] = chosen_s[j] * factor * (SCALED ? scale_s[j] : 1.0);
}
