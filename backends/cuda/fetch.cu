// weigh, top_k, scatter, part_share: the tokens that a row attends to most. block_max, candidates: the largest logits.
#include "backends/cuda/kernels.h"
#include "backends/cuda/page.cuh"
#include "shared/candidates.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

struct BalancedKeys { // divided by the channel balancer of the kv head, if there is one
	PageKeys keys;
	uint32_t head_dim;
	const uint32_t* balance;
	__device__ float4 quad(uint32_t t, uint32_t c) const {
		const float4 x = keys.quad(t, c);
		if (!balance) return x;
		const float4 by = half_quad(balance[c / 2], balance[c / 2 + 1]);
		return {x.x / by.x, x.y / by.y, x.z / by.z, x.w / by.w};
	}
};

// Grid: work items in x, kv heads in y; a thread per slot of a page.
__global__ void weigh_kernel(WeighArgs a) {
	const uint32_t* words = a.work + uint64_t(a.first_work + blockIdx.x) * WEIGH_WORDS;
	const WeighWork w = {words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]};
	const uint32_t t = threadIdx.x, h = blockIdx.y, D = a.head_dim, share = a.n_heads / a.n_kv_heads;
	if (t >= a.page) return;
	const uint64_t head = uint64_t(w.row) * a.n_heads + h * share;
	for (uint32_t p = 0; p < w.n_pages; ++p) {
		const uint32_t* entry = a.tables + w.pages + p * 4;
		float x = -1;
		if (is_live(a.tables + w.live + h * w.live_stride + p * 4, t)) {
			const PageKeys keys = {
			    a.k_codes + entry[0], a.k_params ? a.k_params + entry[2] : nullptr, a.k, h, D, a.page, a.n_kv_heads};
			const BalancedKeys balanced = {keys, D, a.balance ? a.balance + w.balance + h * D / 2 : nullptr};
			if (a.q_rope) {
				const PageValues values = {{a.v_codes + entry[1], a.v_params ? a.v_params + entry[3] : nullptr, a.v, h,
				                            a.rope_dim, a.page, a.n_kv_heads},
				                           nullptr};
				const RopePart<PageValues> rope = {a.q_rope + head * a.rope_dim, values, a.rope_dim};
				x = received(a.q + head * D, a.lse + head, share, D, a.scores, keys, t, rope);
			} else {
				x = received(a.q + head * D, a.lse + head, share, D, a.scores, balanced, t);
			}
		}
		a.weight[w.weight + uint64_t(h) * w.weight_stride + p * a.page + t] = x;
	}
}

// Increases with the weight; 0: not a candidate.
__device__ inline uint32_t rank_of(float weight) {
	return weight >= 0 ? (uint32_t(__float_as_int(weight)) & 0x7fffffffu) + 1 : 0;
}

// Grid: a warp per list. The k-th largest weight is found bit by bit.
__global__ void top_k_kernel(TopArgs a) {
	const uint32_t *w = a.work + uint64_t(blockIdx.x) * 4, lane = threadIdx.x, n = w[1], k = w[3];
	const float* weight = a.weight + w[0];
	uint32_t* picks = a.picks + w[2];
	const auto at_least = [&](uint32_t x) {
		uint32_t count = 0;
		for (uint32_t i = lane; i < n; i += kWarp) count += rank_of(weight[i]) >= x;
		return warp_sum(count);
	};
	uint32_t least = 0; // the largest rank that at least k candidates reach, or 0
	for (uint32_t bit = 0x80000000u; bit; bit >>= 1)
		if (at_least(least | bit) >= k) least |= bit;
	const uint32_t above = least == 0xffffffffu ? 0 : at_least(least + 1);
	uint32_t ties = k > above ? k - above : 0, taken = 0; // left to take; taken
	for (uint32_t first = 0; first < n; first += kWarp) {
		const uint32_t i = first + lane, x = i < n ? rank_of(weight[i]) : 0;
		const uint32_t equal = __ballot_sync(kAllLanes, x == least && x != 0), before = (1u << lane) - 1;
		const bool mine = x > least || (x == least && x != 0 && uint32_t(__popc(equal & before)) < ties);
		const uint32_t all = __ballot_sync(kAllLanes, mine);
		if (mine) picks[taken + uint32_t(__popc(all & before))] = i;
		taken += uint32_t(__popc(all));
		const uint32_t used = uint32_t(__popc(equal));
		ties -= used < ties ? used : ties;
	}
	for (uint32_t i = taken + lane; i < k; i += kWarp) picks[i] = 0xffffffffu;
}

constexpr uint32_t kLeastFloat = 0x007fffffu; // of -inf

// Grid: a warp per block of a row; rows in y.
__global__ void block_max_kernel(CandidatesArgs a) {
	const uint32_t block = blockIdx.x, row = blockIdx.y;
	uint32_t most = 0;
	for (uint32_t i = threadIdx.x; i < KV_LOGIT_BLOCK; i += kWarp) {
		const uint32_t at = block * KV_LOGIT_BLOCK + i, x = at < a.n ? float_order(a.x[uint64_t(row) * a.n + at]) : 0;
		most = x > most ? x : most;
	}
	for (uint32_t step = kWarp / 2; step; step /= 2) {
		const uint32_t other = __shfl_xor_sync(kAllLanes, most, step);
		most = other > most ? other : most;
	}
	if (threadIdx.x == 0) a.block_max[uint64_t(row) * a.blocks + block] = most;
}

// Grid: a warp per row. The k-th largest maximum is found bit by bit.
__global__ void candidates_kernel(CandidatesArgs a) {
	const uint32_t row = blockIdx.x, lane = threadIdx.x;
	const uint32_t* block_max = a.block_max + uint64_t(row) * a.blocks;
	const float* x = a.x + uint64_t(row) * a.n;
	uint32_t* list = a.list + uint64_t(row) * KV_CANDIDATE_WORDS;
	const auto at_least = [&](uint32_t order) {
		uint32_t count = 0;
		for (uint32_t i = lane; i < a.blocks; i += kWarp) count += block_max[i] >= order;
		return warp_sum(count);
	};
	uint32_t bound = 0, found = KV_CANDIDATES + 1;
	for (uint32_t bit = 0x80000000u; bit; bit >>= 1)
		if (at_least(bound | bit) >= a.k) bound |= bit;
	if (a.k <= a.blocks && bound > kLeastFloat && at_least(0xffffffffu) == 0) {
		found = 0;
		for (uint32_t b = 0; b < a.blocks && found <= KV_CANDIDATES; ++b) {
			if (block_max[b] < bound) continue;
			for (uint32_t i = lane; i < KV_LOGIT_BLOCK; i += kWarp) {
				const uint32_t at = b * KV_LOGIT_BLOCK + i;
				const bool mine = at < a.n && float_order(x[at]) >= bound;
				const uint32_t all = __ballot_sync(kAllLanes, mine);
				const uint32_t place = found + uint32_t(__popc(all & ((1u << lane) - 1)));
				if (mine && place < KV_CANDIDATES) {
					list[1 + 2 * place] = at;
					list[2 + 2 * place] = uint32_t(__float_as_int(x[at]));
				}
				found += uint32_t(__popc(all));
			}
		}
	}
	if (lane == 0) list[0] = found <= KV_CANDIDATES ? found : KV_CANDIDATES + 1;
}

__global__ void scatter_kernel(ScatterArgs a) {
	const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < a.n) a.words[a.list[2 * i]] = a.list[2 * i + 1];
}

// A thread per row and head.
__global__ void part_share_kernel(PartShareArgs a) {
	const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i >= a.n * a.n_heads) return;
	const uint32_t* w = a.work + uint64_t(i / a.n_heads) * 4;
	const auto part = [&](uint32_t p) {
		return a.parts + (uint64_t(w[0] + p) * a.n_heads + i % a.n_heads) * (a.head_dim + 2) + a.head_dim;
	};
	float top = minus_inf(), inside = 0, all = 0;
	for (uint32_t p = 0; p < w[1]; ++p) top = fmaxf(top, part(p)[0]);
	for (uint32_t p = 0; p < w[1]; ++p) {
		const float x = part(p)[1] > 0 ? part(p)[1] * expf(part(p)[0] - top) : 0.f;
		all += x;
		if (p < w[2]) inside += x;
	}
	a.out[i] = all > 0 ? inside / all : 0.f;
}

void add_fetch(Kernels& k) {
	k.weigh = {{KV_KERNEL(weigh, WeighArgs)}};
	k.top_k = {{KV_KERNEL(top_k, TopArgs)}};
	k.block_max = {{KV_KERNEL(block_max, CandidatesArgs)}};
	k.candidates = {{KV_KERNEL(candidates, CandidatesArgs)}};
	k.scatter = {{KV_KERNEL(scatter, ScatterArgs)}};
	k.part_share = {{KV_KERNEL(part_share, PartShareArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
