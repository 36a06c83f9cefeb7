// Attention that the live tokens of pages of any format receive from one row:
//   weight[h][slot] = mean over the query heads j of h of exp(q_j . k * scale - lse_j); -1 where no token is live
//
//   binding  name     shape
//   0        weight   f32 words, written (and read where several blocks of heads add up)
//   1        q        (T, n_heads, HEAD_DIM) f32
//   2        k_codes  pool words, [kv head][word][token] in a page
//   3        k_params pool words: (scale, zero) per channel or per token and run of K_GROUP channels
//   4        lse      (T, n_heads) f32
//   5        work     (n_work, 8) u32, WeighWork
//   6        tables   u32 words: page entries, live bits
//   7        balance  u32 words: channel balancers (n_kv_heads, HEAD_DIM) f16
// FLAGS as in attend.comp: 1 K has its parameters per channel; 4 queries are divided by balance.
// Grid: x = work item, y = kv head; an invocation takes every LOCAL_X-th token of the item's pages. HEADS query heads
// share the decoding of a key.
// Needs: HEAD_DIM a multiple of 8.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#include "shared/kv_page.h"
#include "shared/push.h"
#include "shared/spec.h"
layout(local_size_x_id = SPEC_LOCAL_X) in;
layout(constant_id = SPEC_LOCAL_X) const uint LOCAL_X = 32;
layout(constant_id = SPEC_HEAD_DIM) const uint HEAD_DIM = 128;
layout(constant_id = SPEC_K_BITS) const uint K_BITS = 16;
layout(constant_id = SPEC_K_GROUP) const uint K_GROUP = 32;
layout(constant_id = SPEC_FLAGS) const uint FLAGS = 0;
layout(constant_id = SPEC_PAGE) const uint PAGE = 32;
layout(constant_id = SPEC_HEADS) const uint HEADS = 1;
const bool K_CHANNEL = (FLAGS & 1u) != 0u && K_BITS < 16u, BALANCE = (FLAGS & 4u) != 0u;
const uint PER_WORD = 32u / K_BITS; // channels

layout(push_constant) uniform Push { WeighPush p; };
layout(std430, binding = 0) restrict buffer Weight { float weight[]; };
layout(std430, binding = 1) readonly restrict buffer Q { float q[]; };
layout(std430, binding = 2) readonly buffer KCodes { uint k_codes[]; };
layout(std430, binding = 3) readonly buffer KParams { uint k_params[]; };
layout(std430, binding = 4) readonly restrict buffer Lse { float lse[]; };
layout(std430, binding = 5) readonly restrict buffer WorkTable { uint work[]; };
layout(std430, binding = 6) readonly restrict buffer Tables { uint tables[]; };
layout(std430, binding = 7) readonly buffer Balance { uint balance[]; };

shared float q_s[HEADS * HEAD_DIM];

void main() {
	const uint h = gl_WorkGroupID.y, share = p.n_heads / p.n_kv_heads, lane = gl_LocalInvocationIndex;
	const uint item = KV_AT(5) + (p.first_work + gl_WorkGroupID.x) * 8;
	const uint row = work[item], n_tokens = work[item + 1] * PAGE, pages = KV_AT(6) + work[item + 2];
	const uint live = KV_AT(6) + work[item + 3] + h * work[item + 4];
	const uint to = KV_AT(0) + work[item + 5] + h * work[item + 6];
	const uint balance_at = KV_AT(7) + work[item + 7] + h * (HEAD_DIM / 2);
	for (uint first = 0; first < share; first += HEADS) {
		const uint head = row * p.n_heads + h * share + first, here = min(HEADS, share - first);
		barrier();
		for (uint i = lane; i < here * HEAD_DIM; i += LOCAL_X) {
			float x = q[KV_AT(1) + head * HEAD_DIM + i];
			const uint c = i % HEAD_DIM;
			if (BALANCE) x /= unpackHalf2x16(balance[balance_at + c / 2])[c % 2];
			q_s[i] = x;
		}
		barrier();
		for (uint t = lane; t < n_tokens; t += LOCAL_X) {
			const uint page = t / PAGE, in_page = t % PAGE, entry = pages + page * 4;
			if ((tables[live + page * 4 + in_page / 32] >> (in_page % 32) & 1u) == 0u) {
				weight[to + t] = -1;
				continue;
			}
			const uint at = KV_AT(2) + tables[entry] + kv_k_word(h, 0, in_page, HEAD_DIM, K_BITS, PAGE);
			const uint params = KV_AT(3) + (K_BITS < 16u ? tables[entry + 2] : 0u);
			float dots[HEADS];
			[[unroll]] for (uint j = 0; j < HEADS; j++) dots[j] = 0;
			for (uint c = 0; c < HEAD_DIM; c += PER_WORD) {
				const uint word = k_codes[at + c / PER_WORD * PAGE];
				vec2 meaning = vec2(0); // of a token's run of channels
				if (K_BITS < 16u && !K_CHANNEL)
					meaning = unpackHalf2x16(k_params[params + kv_token_param(h, c, in_page, HEAD_DIM, K_GROUP, PAGE)]);
				for (uint i = 0; i < min(PER_WORD, HEAD_DIM - c); i++) {
					float k;
					if (K_BITS == 16u) {
						k = unpackHalf2x16(word)[i];
					} else {
						if (K_CHANNEL) meaning = unpackHalf2x16(k_params[params + kv_channel_param(h, c + i, HEAD_DIM)]);
						k = float(word >> (i * K_BITS) & ((1u << K_BITS % 32u) - 1u)) * meaning.x + meaning.y;
					}
					[[unroll]] for (uint j = 0; j < HEADS; j++) dots[j] += q_s[min(j, here - 1) * HEAD_DIM + c + i] * k;
				}
			}
			float sum = 0;
			[[unroll]] for (uint j = 0; j < HEADS; j++)
				if (j < here) sum += exp(dots[j] * p.scale - lse[KV_AT(4) + head + j]);
			weight[to + t] = (first == 0u ? 0.0 : weight[to + t]) + sum / float(share);
		}
	}
}
