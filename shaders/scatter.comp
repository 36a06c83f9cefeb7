// words[list[i][0]] = list[i][1]. Grid: x = n / LOCAL_X.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(push_constant) uniform Push { ScatterPush p; };
layout(std430, binding = 0) writeonly restrict buffer Words { uint words[]; };
layout(std430, binding = 1) readonly restrict buffer List { uint list[]; };

void main() {
	const uint i = gl_GlobalInvocationID.x;
	if (i >= p.n) return;
	words[KV_AT(0) + list[KV_AT(1) + 2 * i]] = list[KV_AT(1) + 2 * i + 1];
}
