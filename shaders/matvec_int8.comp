// What matvec.comp computes, by integer dot products: x is rounded to int8, weights are codes of 4 to 8 bits.
//
//   sum_k x_k w_k = sum_blocks unit (scale sum_k b_k code_k - min sum_k b_k)
//   b_k = round(x_k / unit), unit = max |x_k| / 127 over blocks of 32 elements.
// NORM: x / rms(x) * norm (cols) f32 in place of x. The sums are divided by rms(x), so rms(x) is needed only at the
// end.
//
// 0 out | 1 w | 2 x | 3 bias | 4 norm; arguments as for matvec.comp, cols a multiple of 32.
// A workgroup rounds CHUNK blocks of each row of x into shared memory. Then each subgroup multiplies ROWS rows of w
// with them; a lane takes one block at a time. An output's sum depends on SUBGROUP only, and rms(x) on the LOCAL_X of
// the dispatch that rounds: not on T, on ROWS or on neighbouring rows.
// MATMUL_RESIDENT: the grid has fewer workgroups than rows need. A workgroup rounds x, of up to CHUNK blocks, once and
// loops over rows; a lane loads the first block of its next rows before it adds up the present ones.
// MATMUL_ROUNDED: round_vec.comp has rounded x; 2 is its codes, 4 its units.
// FLAGS: MATMUL_*.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "shared/push.h"
#include "shared/spec.h"

layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 256;
layout(constant_id = SPEC_ROWS) const uint ROWS = 2;
layout(constant_id = SPEC_COLS) const uint COLS = 1; // T up to 8; 12 or 16 for T from 9. Above 4: MATMUL_ROUNDED only
layout(constant_id = SPEC_WTYPE) const uint WTYPE = 8;
layout(constant_id = SPEC_SUBGROUP) const uint SUBGROUP = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(push_constant) uniform Push { MatmulPush p; };

layout(binding = 0) restrict buffer Out { float o[]; };
layout(binding = 1) restrict readonly buffer W4 { uvec4 w4[]; };
layout(binding = 2) restrict readonly buffer X { uvec4 x[]; };
layout(binding = 3) restrict readonly buffer Bias { float bias[]; };
layout(binding = 4) restrict readonly buffer NormWeight { uvec4 norm_w[]; };

#ifdef GRID
layout(binding = GRID) restrict readonly buffer Grid { uint grid[]; };
#define WEIGHT_GRID(i) grid[i]
#endif
#define WEIGHT_PIECE(i) w4[i]
#define WEIGHT_BLOCKS
#include "lib/unpack_weights.glsl"
#include "lib/matmul_rows.glsl"
#include "lib/matvec_rows.glsl"
#include "lib/round_block.glsl"

const bool RESIDENT = (FLAGS & MATMUL_RESIDENT) != 0u, ROUNDED = (FLAGS & MATMUL_ROUNDED) != 0u;
const uint CHUNK = ROUNDED ? 65536u : RESIDENT ? KV_RESIDENT_BLOCKS : COLS == 1u ? 256u : COLS == 2u ? 128u : 64u;
const uint ROUNDERS = LOCAL_X / BLOCK_LANES; // groups of lanes; each group rounds one block
shared uvec4 x_s[ROUNDED ? 1u : COLS * 2u * CHUNK]; // [token][half][block] 16 bytes
shared uvec2 unit_s[ROUNDED ? 1u : COLS * CHUNK]; // [token][block] unit; sums of each half's bytes, int16
shared float squares_s[NORM && !ROUNDED ? COLS * (LOCAL_X / SUBGROUP) : 1u]; // [token][subgroup]

float squares[COLS]; // of this lane's elements of x

// Worker i of n, a power of two, takes the blocks of a row whose number is i modulo n, whatever CHUNK is, so that sums
// keep their order. Returns the first such block of the chunk that begins at block `first`, counted from there.
uint own_block(uint i, uint n, uint first) { return (i - first) % n; }

// Blocks [first, first + CHUNK) of x to shared memory.
void round_chunk(uint first, uint blocks) {
	const uint j = gl_LocalInvocationIndex % BLOCK_LANES, x_quads = p.cols / 4u;
	const uint end = min(CHUNK, (blocks - first + 15u) & ~15u); // a subgroup's lanes take as many rounds
	[[dont_unroll]] for (uint b = own_block(gl_LocalInvocationIndex / BLOCK_LANES, ROUNDERS, first); b < end;
	                     b += ROUNDERS) {
		const uint quad = min(first + b, blocks - 1u) * 8u + j;
		[[unroll]] for (uint t = 0; t < COLS; t++) {
			const uint at = KV_AT(2) / 4u + vec_x(t) * x_quads + quad;
			vec4 lower = uintBitsToFloat(x[at]), upper = uintBitsToFloat(x[at + 4u]);
			if (NORM) {
				if (first + b < blocks) squares[t] += dot(lower, lower) + dot(upper, upper);
				lower *= uintBitsToFloat(norm_w[KV_AT(4) / 4u + quad]);
				upper *= uintBitsToFloat(norm_w[KV_AT(4) / 4u + quad + 4u]);
			}
			const RoundedBlock r = round_block(lower, upper);
			x_s[(t * 2u) * CHUNK + b][j] = r.lower;
			x_s[(t * 2u + 1u) * CHUNK + b][j] = r.upper;
			if (j == 0u) unit_s[t * CHUNK + b] = uvec2(floatBitsToUint(r.unit), uint(r.sums));
		}
	}
	barrier();
}

// What a lane needs of one block of a row.
struct Block {
	WeightUnit lower, upper;
	WeightScales scales;
};
void load_blocks(uint row[ROWS], uint b, out Block w[ROWS]) {
	[[unroll]] for (uint r = 0; r < ROWS; r++) {
		weight_block(row[r], b, p.cols, w[r].lower, w[r].upper);
		w[r].scales = weight_scales(row[r], b / 8u, p.cols);
	}
}

// Adds the products of a block of each row with block `at` of the chunk.
void multiply(uvec4 lower[ROWS], uvec4 upper[ROWS], vec4 scale[ROWS], uint at) {
	[[unroll]] for (uint t = 0; t < COLS; t++) {
		ivec4 l, u;
		uvec2 s;
		if (ROUNDED) {
			const uint c = KV_AT(2) / 4u + at / 32u * (COLS * 64u) + at % 32u;
			l = ivec4(x[c + t * 64u]);
			u = ivec4(x[c + t * 64u + 32u]);
			const uvec4 two = norm_w[KV_AT(4) / 4u + at / 32u * (COLS * 16u) + at % 32u / 2u + t * 16u];
			s = (at & 1u) == 0u ? two.xy : two.zw;
		} else {
			l = ivec4(x_s[(t * 2u) * CHUNK + at]);
			u = ivec4(x_s[(t * 2u + 1u) * CHUNK + at]);
			s = unit_s[t * CHUNK + at];
		}
		const float unit = uintBitsToFloat(s.x);
		const ivec2 sums = half_sums(int(s.y));
		[[unroll]] for (uint r = 0; r < ROWS; r++) {
			int a = 0, c = 0;
			[[unroll]] for (uint i = 0; i < 4u; i++) {
				a += dot_bytes(int(lower[r][i]), l[i], 0);
				c += dot_bytes(int(upper[r][i]), u[i], 0);
			}
			float sum;
			if (WEIGHT_BY_HALVES) {
				const int zero = int(WEIGHT_ZERO);
				sum = scale[r].x * float(a - zero * sums.x) + scale[r].z * float(c - zero * sums.y);
			} else {
				sum = scale[r].x * float(a + c);
				if (WEIGHT_MIN) sum -= scale[r].y * float(sums.x + sums.y);
			}
			acc[r * COLS + t] = fma(unit, sum, acc[r * COLS + t]);
		}
	}
}

// First pieces of a subgroup's rows.
void find_rows(uint first, uint row_pieces, out uint row[ROWS]) {
	[[unroll]] for (uint r = 0; r < ROWS; r++)
		row[r] = KV_AT(1) / 4u + matmul_row_at(matmul_slot(first + r), row_pieces);
}

// What the sums are multiplied by: 1 / rms(x).
void norm_scales(uint blocks, out float scale[COLS]) {
	const uint n = LOCAL_X / SUBGROUP;
	if (ROUNDED) {
		[[unroll]] for (uint t = 0; t < COLS; t++)
			scale[t] = uintBitsToFloat(norm_w[KV_AT(4) / 4u + (blocks + 31u) / 32u * (COLS * 16u) + t].x);
		return;
	}
	[[unroll]] for (uint t = 0; t < COLS; t++) {
		const float sum = subgroupAdd(squares[t]);
		if (gl_SubgroupInvocationID == 0u) squares_s[t * n + gl_SubgroupID] = sum;
	}
	barrier();
	[[unroll]] for (uint t = 0; t < COLS; t++) {
		float sum = 0.0;
		[[unroll]] for (uint i = 0; i < n; i++) sum += squares_s[t * n + i];
		scale[t] = 1.0 / sqrt(sum / float(p.cols) + p.eps);
	}
}

void main() {
	if (!matmul_begin()) return; // the same for the whole workgroup
	const uint lane = gl_SubgroupInvocationID, group = gl_SubgroupID;
	uint first = (gl_WorkGroupID.x * (LOCAL_X / SUBGROUP) + group) * ROWS;
	const uint row_pieces = weight_row_pieces(WEIGHT, p.cols), blocks = p.cols / 32u;
	const uint stride = p.groups * (LOCAL_X / SUBGROUP) * ROWS;
	const uint slots = EPILOGUE == MATMUL_SWIGLU ? 2u * p.rows[0] : p.rows[0] + p.rows[1] + p.rows[2];
	uint row[ROWS]; // first piece
	find_rows(first, row_pieces, row);
	[[unroll]] for (uint t = 0; t < COLS; t++) squares[t] = 0.0;
	float scale_x[COLS];

	Block next[ROWS];
	load_blocks(row, min(lane, blocks - 1u), next); // the device fetches weights while x is rounded
	if (RESIDENT) {
		round_chunk(0u, blocks);
		if (NORM) norm_scales(blocks, scale_x);
	}
	do {
		[[unroll]] for (uint i = 0; i < ROWS * COLS; i++) acc[i] = 0.0;
		for (uint chunk = 0; chunk < blocks; chunk += CHUNK) {
			if (!RESIDENT && !ROUNDED) {
				if (chunk > 0) barrier();
				round_chunk(chunk, blocks);
			}
			const uint end = min(CHUNK, blocks - chunk);
			[[dont_unroll]] for (uint at = own_block(lane, SUBGROUP, chunk); at < end; at += SUBGROUP) {
				uvec4 lower[ROWS], upper[ROWS]; // bytes
				vec4 scale[ROWS];
				[[unroll]] for (uint r = 0; r < ROWS; r++) {
					[[unroll]] for (uint i = 0; i < 4u; i++) {
						lower[r][i] = weight_code_bytes(next[r].lower, i);
						upper[r][i] = weight_code_bytes(next[r].upper, i);
					}
					scale[r] = weight_block_scale(next[r].scales, SUBGROUP % 8u == 0u ? lane % 8u : at % 8u,
					                              next[r].lower, next[r].upper);
				}
				uint after = min(chunk + at + SUBGROUP, blocks - 1u);
				if (RESIDENT && at + SUBGROUP >= blocks) { // the lane's last block of these rows
					find_rows(first + stride, row_pieces, row);
					after = lane;
				}
				load_blocks(row, after, next);
				multiply(lower, upper, scale, at);
			}
		}
		[[unroll]] for (uint i = 0; i < ROWS * COLS; i++) acc[i] = subgroupAdd(acc[i]);
		if (NORM) {
			if (!RESIDENT) norm_scales(blocks, scale_x);
			[[unroll]] for (uint t = 0; t < COLS; t++)
				[[unroll]] for (uint r = 0; r < ROWS; r++) acc[r * COLS + t] *= scale_x[t];
		}
		if (lane == 0u) matvec_store(first);
		first += stride;
	} while (RESIDENT && first < slots);
}
