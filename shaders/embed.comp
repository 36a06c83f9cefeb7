// out[t][c] = table[tokens[t]][c], as f32.
//
// dims     out (T, dim) f32; table (rows, dim), rows of shared/weight_row.h; tokens (T)
// grid     x: dim / 16 / LOCAL_X, y: T, z: T / 32768; an invocation unpacks 16 channels
// A table larger than one binding is bound in pieces, one dispatch each. A token outside the table gives a zero row.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_WTYPE) const uint WTYPE = 0u;
layout(push_constant) uniform Push { EmbedPush p; };

layout(set = 0, binding = 0) restrict writeonly buffer Out { float out_x[]; };
layout(set = 0, binding = 1) restrict readonly buffer Table4 { uvec4 table4[]; };
layout(set = 0, binding = 1) restrict readonly buffer Table2 { uvec2 table2[]; };
layout(set = 0, binding = 1) restrict readonly buffer Table1 { uint table1[]; };
layout(set = 0, binding = 2) restrict readonly buffer Tokens { uint tokens[]; };

#ifdef GRID
layout(binding = GRID) restrict readonly buffer Grid { uint grid[]; };
#define WEIGHT_GRID(i) grid[i]
#endif
#define WEIGHT_PIECE(i) table4[i]
#define WEIGHT_PAIR(i) table2[i]
#define WEIGHT_WORD(i) table1[i]
#include "lib/unpack_weights.glsl"

void main() {
	const uint unit = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y + gl_WorkGroupID.z * 32768u;
	if (16u * unit >= p.dim || t >= p.n_tokens) return;
	const uint token = tokens[KV_AT(2) + t];
	const bool past = token >= p.first_row + p.n_rows;
	if (token < p.first_row || (past && p.last_piece == 0u)) return;
	const uint row = KV_AT(1) / 4u + (past ? 0u : token - p.first_row) * weight_row_pieces(WEIGHT, p.dim);
	const WeightUnit codes = weight_unit(row, unit, p.dim);
	const vec2 scale = weight_unit_scale(row, unit, p.dim);
	const float origin = float(WEIGHT_ZERO); // min is this times scale: subtracting it from the code first is exact
	[[unroll]] for (uint i = 0u; i < 4u; ++i) {
		vec4 v = weight_quad(codes, i);
		if (origin > 0.0) v = scale.x * (v - origin);
		else if (!WEIGHT_PLAIN) v = scale.x * v - scale.y;
		[[unroll]] for (uint k = 0u; k < 4u; ++k) {
			const uint c = 16u * unit + 4u * i + k;
			if (c < p.dim) out_x[KV_AT(0) + t * p.dim + c] = past ? 0.0 : v[k];
		}
	}
}
