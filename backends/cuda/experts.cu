// route: the experts that a row chooses. sort_slots: the slots of a prompt by expert. expert_sum: the sum of the
// experts' outputs.
#include "backends/cuda/device.cuh"
#include "backends/cuda/kernels.h"
#include "shared/experts.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

// The largest of choice[0 .. n); `two`: plus the second largest.
__device__ inline float group_choice(Shared<float, KV_MOST_EXPERTS>& choice, uint32_t first, uint32_t n, bool two) {
	float best = minus_inf(), second = best;
	for (uint32_t e = first; e < first + n; ++e) {
		const float c = choice[e];
		if (c > best)
			second = best, best = c;
		else if (c > second)
			second = c;
	}
	return two ? best + second : best;
}

// Weight of chosen expert e: its softmax over e and the experts near it that come after it.
__device__ inline float near_weight(Shared<float, KV_MOST_EXPERTS>& choice, Shared<uint32_t, KV_MOST_EXPERTS>& order,
                                    uint32_t e, uint32_t E) {
	const float top = choice[e];
	float sum = 0;
	for (uint32_t i = 0; i < E; ++i) {
		const bool before = i < e ? order[i] >= order[e] : order[i] > order[e];
		const float s = choice[i], away = top - s;
		if (!before && !(away > KV_NEAR * fmaxf(fabsf(s), top))) sum += expf(-away);
	}
	return 1 / sum;
}

// Grid: a block per row; a thread takes experts blockDim.x apart. An expert's rank is the number of experts before it.
__global__ void route_kernel(RouteArgs a) {
	__shared__ Shared<float, KV_MOST_EXPERTS> weight, choice;
	__shared__ Shared<uint32_t, KV_MOST_EXPERTS> order;
	__shared__ Shared<uint32_t, KV_MOST_GROUPS> group;
	__shared__ Shared<float, KV_MOST_USED> chosen, own_scale;
	const uint32_t row = blockIdx.x, E = a.n_experts;
	for (uint32_t e = threadIdx.x; e < E; e += blockDim.x) choice[e] = a.logits[uint64_t(row) * E + e];
	__syncthreads();
	float sum = 0;
	if (!a.sigmoid && !a.softplus) {
		float top = choice[0];
		for (uint32_t e = 1; e < E; ++e) top = fmaxf(top, choice[e]);
		for (uint32_t e = threadIdx.x; e < E; e += blockDim.x) weight[e] = expf(choice[e] - top);
		__syncthreads();
		for (uint32_t e = 0; e < E; ++e) sum += weight[e];
		__syncthreads();
	}
	for (uint32_t e = threadIdx.x; e < E; e += blockDim.x) {
		const float w = a.sigmoid    ? 1 / (1 + expf(-choice[e]))
		                : a.softplus ? sqrtf(softplus(choice[e]))
		                             : weight[e] / sum;
		weight[e] = w;
		if (a.bias) choice[e] = w + a.bias[e]; // without a bias logits decide: both functions increase with them
		order[e] = float_order(choice[e]);
	}
	__syncthreads();
	if (a.n_groups > 1) { // experts outside of the best groups come last
		const uint32_t n = E / a.n_groups;
		for (uint32_t g = threadIdx.x; g < a.n_groups; g += blockDim.x)
			group[g] = float_order(group_choice(choice, g * n, n, a.bias != nullptr));
		__syncthreads();
		for (uint32_t e = threadIdx.x; e < E; e += blockDim.x) {
			uint32_t before = 0;
			const uint32_t own = group[e / n];
			for (uint32_t g = 0; g < a.n_groups; ++g) before += group[g] > own || (group[g] == own && g < e / n);
			if (before >= a.used_groups) order[e] = 0;
		}
		__syncthreads();
	}
	for (uint32_t j = threadIdx.x; a.of_tokens && j < a.used; j += blockDim.x) {
		const uint32_t e = a.of_tokens[uint64_t(a.tokens[row]) * a.used + j];
		a.ids[uint64_t(row) * a.used + j] = e;
		chosen[j] = weight[e], own_scale[j] = 1;
	}
	for (uint32_t e = threadIdx.x; !a.of_tokens && e < E; e += blockDim.x) {
		const uint32_t own = order[e];
		uint32_t before = 0;
		for (uint32_t i = 0; i < E; ++i) before += i < e ? order[i] >= own : order[i] > own;
		if (before >= a.used) continue;
		a.ids[uint64_t(row) * a.used + before] = e;
		chosen[before] = a.near ? near_weight(choice, order, e, E) : weight[e];
		own_scale[before] = a.expert_scale ? a.expert_scale[e] : 1.f;
	}
	__syncthreads();
	for (uint32_t j = threadIdx.x; j < a.used; j += blockDim.x) {
		float all = 0;
		for (uint32_t i = 0; i < a.used; ++i) all += chosen[i];
		a.weights[uint64_t(row) * a.used + j] =
		    chosen[j] * (a.normalise ? a.scale / fmaxf(all, 1e-20f) : a.scale) * own_scale[j];
	}
}

__device__ inline uint32_t tiles_before(Shared<uint32_t, KV_MOST_EXPERTS>& count, uint32_t n) {
	uint32_t sum = 0;
	for (uint32_t i = 0; i < n; ++i) sum += (count[i] + KV_EXPERT_TILE - 1) / KV_EXPERT_TILE;
	return sum;
}

// Grid: one block. A thread counts the slots of one expert at a time.
__global__ void sort_slots_kernel(SortSlotsArgs a) {
	__shared__ Shared<uint32_t, KV_MOST_EXPERTS> count;
	for (uint32_t e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
		uint32_t n = 0;
		for (uint32_t slot = 0; slot < a.n_slots; ++slot) n += a.ids[slot] == e;
		count[e] = n;
	}
	__syncthreads();
	for (uint32_t e = threadIdx.x; e < a.n_experts; e += blockDim.x) {
		uint32_t* tile = a.tiles + uint64_t(tiles_before(count, e)) * KV_TILE_WORDS;
		uint32_t n = 0;
		const auto put = [&](uint32_t slot) {
			uint32_t* to = tile + uint64_t(n / KV_EXPERT_TILE) * KV_TILE_WORDS;
			if (n % KV_EXPERT_TILE == 0) to[0] = e;
			to[1 + n % KV_EXPERT_TILE] = slot;
			++n;
		};
		for (uint32_t slot = 0; slot < a.n_slots; ++slot)
			if (a.ids[slot] == e) put(slot);
		while (n % KV_EXPERT_TILE) put(KV_NO_SLOT);
	}
	const uint32_t end = a.n_tiles * KV_TILE_WORDS;
	for (uint32_t i = tiles_before(count, a.n_experts) * KV_TILE_WORDS + threadIdx.x; i < end; i += blockDim.x)
		a.tiles[i] = KV_NO_SLOT;
}

// Grid: rows in x, columns in y, a thread each.
__global__ void expert_sum_kernel(ExpertSumArgs a) {
	const uint32_t c = blockIdx.y * blockDim.x + threadIdx.x;
	if (c >= a.dim) return;
	const uint64_t slot = uint64_t(blockIdx.x) * a.used;
	float& x = a.x[uint64_t(blockIdx.x) * a.dim + c];
	float sum = x;
	for (uint32_t j = 0; j < a.used; ++j) sum += a.weights[slot + j] * a.y[(slot + j) * a.dim + c];
	x = sum;
}

void add_experts(Kernels& k) {
	k.route = {{KV_KERNEL(route, RouteArgs)}};
	k.sort_slots = {{KV_KERNEL(sort_slots, SortSlotsArgs)}};
	k.expert_sum = {{KV_KERNEL(expert_sum, ExpertSumArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
