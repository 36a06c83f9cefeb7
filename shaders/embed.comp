// out[t][c] = table[tokens[t]][c], as f32.
//
// dims     out (T, dim) f32; table (rows, dim) of FLAGS 0 f32, 1 f16, 2 bf16, rows padded to row_words; tokens (T) u32
// grid     x: channels / LOCAL_X, y: T, z: T / 32768
// A table larger than one binding comes in pieces, one dispatch each; a token outside the table gives a zero row.
#version 450
#extension GL_GOOGLE_include_directive : require
#include "shared/push.h"
#include "shared/spec.h"
#include "lib/numeric.glsl"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0u;
layout(push_constant) uniform Push { EmbedPush p; };

layout(set = 0, binding = 0) restrict writeonly buffer Out { float out_x[]; };
layout(set = 0, binding = 1) restrict readonly buffer Table { uint table[]; };
layout(set = 0, binding = 2) restrict readonly buffer Tokens { uint tokens[]; };

void main() {
	const uint c = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y + gl_WorkGroupID.z * 32768u;
	if (c >= p.dim || t >= p.n_tokens) return;
	const uint token = tokens[KV_AT(2) + t];
	const bool past = token >= p.first_row + p.n_rows;
	if (token < p.first_row || (past && p.last_piece == 0u)) return;
	float x = 0.0;
	if (!past) {
		const uint row = KV_AT(1) + (token - p.first_row) * p.row_words;
		if (FLAGS == 0u) {
			x = uintBitsToFloat(table[row + c]);
		} else {
			const uint w = table[row + c / 2u];
			if (FLAGS == 1u) x = (c & 1u) == 0u ? unpackHalf2x16(w).x : unpackHalf2x16(w).y;
			else x = (c & 1u) == 0u ? bf16_low(w) : bf16_high(w);
		}
	}
	out_x[KV_AT(0) + t * p.dim + c] = x;
}
