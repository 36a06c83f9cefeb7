// attend, attend_prompt and attend_merge: softmax over tokens in one pass, a tile at a time; unpack_latents.
//
// A block serves up to 8 queries (pairs of row and query head) of one kv head. Thread t owns token t of a tile while
// scores are computed, and channels t and t + 128 while values are added. Threads exchange data through shared memory.
#include "backends/cuda/kernels.h"
#include "backends/cuda/page.cuh"

namespace kvrun::cuda::KV_CUDA_BUILD {

// kParts: channels of a thread. Kernels for heads of at most kThreads channels take a quarter of the registers for sums
// and a third of the shared memory.
constexpr uint32_t kMostParts = kMaxHeadDim / kThreads;
// Blocks at once on a processor: nvcc need not save registers for more.
[[maybe_unused]] constexpr uint32_t kBlocks = 4, kNarrowBlocks = 6;

template <uint32_t kParts> struct AttendShared {
	// Of a query; latents have a rotated part behind the others.
	static constexpr uint32_t kRow = kParts == 1 ? kThreads : kMaxHeadDim + 128;
	Shared<float, kQueries * kRow> q;
	Shared<float, kQueries * kThreads> p; // scores of a tile, then weights
	Shared<float, kQueries> max, sum;     // of the tokens so far
	Shared<float, kQueries> keep;         // factor of the sums so far
};

// Queries of this block. query(j) is a row of q (row * n_heads + head).
template <class S, class Query>
__device__ inline void load_queries(S& s, const float* q, uint32_t n, uint32_t D, Query query,
                                    const uint32_t* balance) {
	for (uint32_t i = threadIdx.x; i < n * D; i += blockDim.x) {
		const float x = q[uint64_t(query(i / D)) * D + i % D];
		s.q[i / D * S::kRow + i % D] = balance ? x / half_at(balance, i % D) : x; // keys were multiplied by it
	}
	if (threadIdx.x < n) s.max[threadIdx.x] = minus_inf(), s.sum[threadIdx.x] = 0;
	__syncthreads();
}

// The part of queries that meets rotated keys, behind the others.
template <class S, class Query>
__device__ inline void load_rope(S& s, const float* q, uint32_t n, uint32_t D, uint32_t rope_dim, Query query) {
	for (uint32_t i = threadIdx.x; i < n * rope_dim; i += blockDim.x)
		s.q[i / rope_dim * S::kRow + D + i % rope_dim] = q[uint64_t(query(i / rope_dim)) * rope_dim + i % rope_dim];
	__syncthreads();
}

// Adds a tile of n_tokens tokens. sees(j, t): query j attends to token t.
template <uint32_t kParts, class Keys, class Values, class Sees>
__device__ inline void add_tile(AttendShared<kParts>& s, float (&acc)[kQueries][kParts], uint32_t n, uint32_t n_tokens,
                                uint32_t D, const Scores& scores, const Keys& keys, const Values& values, Sees sees) {
	const uint32_t t = threadIdx.x;
	if (t < n_tokens) {
		float dot[kQueries] = {};
		bool any = false;
		for (uint32_t j = 0; j < n; ++j) any = any || sees(j, t);
		if (any) // other slots may hold any bits
			keys.each(t, [&](uint32_t c, float x) {
#pragma unroll
				for (uint32_t j = 0; j < kQueries; ++j)
					if (j < n) dot[j] += s.q[j * s.kRow + c] * x;
			});
#pragma unroll
		for (uint32_t j = 0; j < kQueries; ++j)
			if (j < n) s.p[j * kThreads + t] = sees(j, t) ? score_of(scores, dot[j]) : minus_inf();
	}
	__syncthreads();
	for (uint32_t j = threadIdx.x / kWarp; j < n; j += kThreads / kWarp) { // a warp per query
		const uint32_t lane = threadIdx.x % kWarp;
		const float before = s.max[j];
		float max = before;
		for (uint32_t i = lane; i < n_tokens; i += kWarp) max = fmaxf(max, s.p[j * kThreads + i]);
		max = warp_max(max);
		float sum = 0;
		for (uint32_t i = lane; i < n_tokens; i += kWarp) {
			const float score = s.p[j * kThreads + i], p = score == minus_inf() ? 0.f : expf(score - max);
			s.p[j * kThreads + i] = p;
			sum += p;
		}
		sum = warp_sum(sum);
		__syncwarp(); // every lane has read the state
		if (lane == 0) {
			const float keep = before == minus_inf() ? 0.f : expf(before - max);
			s.keep[j] = keep, s.max[j] = max, s.sum[j] = s.sum[j] * keep + sum;
		}
	}
	__syncthreads();
#pragma unroll
	for (uint32_t part = 0; part < kParts; ++part) {
		const uint32_t c = threadIdx.x + part * kThreads;
		if (c >= D) continue;
#pragma unroll
		for (uint32_t j = 0; j < kQueries; ++j)
			if (j < n) acc[j][part] *= s.keep[j];
		for (uint32_t i = 0; i < n_tokens; ++i) {
			bool any = false;
			for (uint32_t j = 0; j < n; ++j) any = any || s.p[j * kThreads + i] != 0.f;
			if (!any) continue;
			const float v = values.at(i, c);
#pragma unroll
			for (uint32_t j = 0; j < kQueries; ++j)
				if (j < n && s.p[j * kThreads + i] != 0.f) acc[j][part] += s.p[j * kThreads + i] * v;
		}
	}
	__syncthreads(); // before the next tile's scores
}

// State of query j, as in KvRead::parts.
template <uint32_t kParts>
__device__ inline void put_state(AttendShared<kParts>& s, const float (&acc)[kQueries][kParts], uint32_t j, uint32_t D,
                                 float* state) {
#pragma unroll
	for (uint32_t i = 0; i < kQueries; ++i) { // indices of registers are constants
		if (i != j) continue;
#pragma unroll
		for (uint32_t part = 0; part < kParts; ++part)
			if (threadIdx.x + part * kThreads < D) state[threadIdx.x + part * kThreads] = acc[i][part];
	}
	if (threadIdx.x == 0) state[D] = s.max[j], state[D + 1] = s.sum[j];
}

// Rotates the sums of rotated values back. Queries are no longer needed.
template <uint32_t kParts>
__device__ inline void rotate_sums(AttendShared<kParts>& s, float (&acc)[kQueries][kParts], uint32_t n, uint32_t D) {
	const auto each = [&](auto f) {
#pragma unroll
		for (uint32_t j = 0; j < kQueries; ++j)
#pragma unroll
			for (uint32_t part = 0; part < kParts; ++part)
				if (const uint32_t c = threadIdx.x + part * kThreads; j < n && c < D) f(acc[j][part], j * s.kRow + c);
	};
	each([&](float& x, uint32_t at) { s.q[at] = x; });
	rotate_rows(s.q, n, s.kRow, D, true);
	each([&](float& x, uint32_t at) { x = s.q[at]; });
}

// Partial states of one work item. Grid: work items times `blocks` in x, kv heads in y.
template <bool kLatent, uint32_t kParts> __device__ inline void attend_item(const AttendArgs& a) {
	__shared__ AttendShared<kParts> s;
	const uint32_t* words = a.work + uint64_t(a.first_work + blockIdx.x / a.blocks) * ATTEND_WORDS;
	const AttendWork w = {words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]};
	const uint32_t h = blockIdx.y, D = a.head_dim, share = a.n_heads / a.n_kv_heads;
	const uint32_t rows = a.n_rows - w.row < a.item_rows ? a.n_rows - w.row : a.item_rows;
	const uint32_t first = blockIdx.x % a.blocks * kQueries, all = rows * share;
	if (first >= all) return;
	const uint32_t n = all - first < kQueries ? all - first : kQueries;
	const auto head_of = [&](uint32_t j) { return h * share + (first + j) % share; };
	const auto row_of = [&](uint32_t j) { return (first + j) / share; };
	const auto query = [&](uint32_t j) { return (w.row + row_of(j)) * a.n_heads + head_of(j); };
	load_queries(s, a.q, n, D, query, a.balance ? a.balance + w.balance + h * D / 2 : nullptr);
	if (kLatent) load_rope(s, a.q_rope, n, D, a.rope_dim, query);
	if (a.k.rotate) rotate_rows(s.q, n, s.kRow, D, false); // as the keys are
	float acc[kQueries][kParts] = {};
	for (uint32_t p = 0; p < w.n_pages; ++p) {
		const uint32_t *entry = a.tables + w.pages + p * 4, *live = a.tables + w.live + h * w.live_stride + p * 4;
		uint32_t any = 0;
		for (uint32_t i = 0; i < a.page / 32; ++i) any |= live[i];
		if (!any) continue; // uniform over the block
		const PageKeys keys = {
		    {a.k_codes + entry[0], a.k_params ? a.k_params + entry[2] : nullptr, a.k, h, D, a.page, a.n_kv_heads}};
		const PageValues values = {{a.v_codes + entry[1], a.v_params ? a.v_params + entry[3] : nullptr, a.v, h,
		                            kLatent ? a.rope_dim : D, a.page, a.n_kv_heads},
		                           a.v_factors ? a.v_factors + a.tables[w.factors + p] : nullptr};
		const auto sees = [&](uint32_t, uint32_t t) { return is_live(live, t); };
		if constexpr (kLatent) {
			const LatentKeys<PageKeys, PageValues> both = {keys, values, D, a.rope_dim};
			add_tile(s, acc, n, a.page, D, a.scores, both, keys, sees);
		} else {
			add_tile(s, acc, n, a.page, D, a.scores, keys, values, sees);
		}
	}
	if (kLatent ? a.k.rotate : a.v.rotate) rotate_sums(s, acc, n, D);
	for (uint32_t j = 0; j < n; ++j) {
		const uint64_t part = w.part + uint64_t(row_of(j)) * a.part_step;
		put_state(s, acc, j, D, a.parts + (part * a.n_heads + head_of(j)) * (D + 2));
	}
}

__global__ void __launch_bounds__(kThreads, kBlocks) attend_kernel(AttendArgs a) { attend_item<false, kMostParts>(a); }
__global__ void __launch_bounds__(kThreads, kNarrowBlocks) attend_narrow_kernel(AttendArgs a) {
	attend_item<false, 1>(a);
}
__global__ void __launch_bounds__(kThreads, kBlocks) attend_latent_kernel(AttendArgs a) {
	attend_item<true, kMostParts>(a);
}

// Live tokens of a work item's pages, one after the other, as rows of halves. Grid: work items in x.
__global__ void unpack_latents_kernel(UnpackArgs a) {
	__shared__ Shared<float, kMaxHeadDim> x;
	const uint32_t* words = a.work + uint64_t(a.first_work + blockIdx.x) * ATTEND_WORDS;
	const AttendWork w = {words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]};
	uint64_t row = uint64_t(a.first_row) + w.row;
	const auto put = [&](uint32_t* to, uint32_t n) { // values beyond the largest half become that one
		const auto finite = [](float y) { return y > 65504.f ? 65504.f : y < -65504.f ? -65504.f : y; };
		for (uint32_t i = threadIdx.x; i < n / 2; i += blockDim.x)
			to[i] = half_pair(finite(x[2 * i]), finite(x[2 * i + 1]));
	};
	for (uint32_t p = 0; p < w.n_pages; ++p) {
		const uint32_t *entry = a.tables + w.pages + p * 4, *live = a.tables + w.live + p * 4;
		const PageKeys keys = {
		    {a.k_codes + entry[0], a.k_params ? a.k_params + entry[2] : nullptr, a.k_side, 0, a.k_dim, a.page, 1}};
		const PageValues values = {
		    {a.v_codes + entry[1], a.v_params ? a.v_params + entry[3] : nullptr, a.v_side, 0, a.v_dim, a.page, 1},
		    nullptr};
		for (uint32_t t = 0; t < a.page; ++t) {
			if (!is_live(live, t)) continue; // uniform over the block
			for (uint32_t c = threadIdx.x; c < a.k_dim; c += blockDim.x) x[c] = keys.at(t, c);
			if (a.k_side.rotate) rotate_rows(x, 1, a.k_dim, a.k_dim, true);
			__syncthreads();
			put(a.k + row * (a.k_dim / 2), a.k_dim);
			__syncthreads();
			for (uint32_t c = threadIdx.x; c < a.v_dim; c += blockDim.x) x[c] = values.at(t, c);
			__syncthreads();
			put(a.v + row * (a.v_dim / 2), a.v_dim);
			__syncthreads();
			++row;
		}
	}
}

// The factor that turns a state's sums into its output, and the log of the sum of exp(score); no token seen: 0 and
// -inf.
__device__ inline float inverse(float sum) { return sum > 0 ? 1 / sum : 0.f; }
__device__ inline float log_sum(float max, float sum) { return sum > 0 ? max + logf(sum) : minus_inf(); }

// Adds one more score, without a value, to the maximum and the sum. Returns the factor of the sums over tokens.
__device__ inline float add_sink(float sink, float& max, float& sum) {
	const float before = max;
	max = fmaxf(max, sink);
	const float keep = before == minus_inf() ? 0.f : expf(before - max);
	sum = sum * keep + expf(sink - max);
	return keep;
}

// Rows of a prompt over its own tokens, causal. Tiles begin at token 0, whatever rows share the block. Grid: groups of
// 8 queries in x, kv heads in y.
template <bool kLatent, uint32_t kParts> __device__ inline void attend_rows(const AttendPromptArgs& a) {
	__shared__ AttendShared<kParts> s;
	const uint32_t h = blockIdx.y, D = a.head_dim, share = a.n_heads / a.n_kv_heads;
	const uint32_t first = blockIdx.x * kQueries, all = a.n_rows * share;
	const uint32_t n = all - first < kQueries ? all - first : kQueries;
	const auto head_of = [&](uint32_t j) { return h * share + (first + j) % share; };
	const auto row_of = [&](uint32_t j) { return (first + j) / share; };
	const auto query = [&](uint32_t j) { return row_of(j) * a.n_heads + head_of(j); };
	load_queries(s, a.q, n, D, query, nullptr);
	if (kLatent) load_rope(s, a.q_rope, n, D, a.rope_dim, query);
	float acc[kQueries][kParts] = {};
	const uint32_t seen = a.first + row_of(n - 1) + 1; // tokens that the last row sees
	const uint32_t v_dim = kLatent ? a.rope_dim : D;
	const auto first_seen = [&](uint32_t token) {
		return a.chunked ? token / a.window * a.window : token < a.window ? 0u : token - a.window + 1;
	};
	for (uint32_t t0 = first_seen(a.first + row_of(0)) / kThreads * kThreads; t0 < seen; t0 += kThreads) {
		const uint32_t* const k_words = a.k + uint64_t(h) * a.t_cap * (D / 2);
		const RowKeys keys = {k_words, t0, D};
		const RowValues values = {a.v + uint64_t(h) * a.t_cap * (v_dim / 2), t0, v_dim};
		const uint32_t n_tokens = seen - t0 < kThreads ? seen - t0 : kThreads;
		const auto sees = [&](uint32_t j, uint32_t t) {
			return t0 + t <= a.first + row_of(j) && t0 + t >= first_seen(a.first + row_of(j));
		};
		if constexpr (kLatent) {
			const LatentKeys<RowKeys, RowValues> both = {keys, values, D, v_dim};
			add_tile(s, acc, n, n_tokens, D, a.scores, both, RowValues{k_words, t0, D}, sees);
		} else {
			add_tile(s, acc, n, n_tokens, D, a.scores, keys, values, sees);
		}
	}
	for (uint32_t j = 0; j < n; ++j) {
		const uint64_t row = row_of(j), at = row * a.n_heads + head_of(j);
		if (a.row_parts) { // the state goes to the row's last part
			const uint64_t part = a.row_parts[2 * row] + a.row_parts[2 * row + 1] - 1;
			put_state(s, acc, j, D, a.parts + (part * a.n_heads + head_of(j)) * (D + 2));
			continue;
		}
		float max = s.max[j], sum = s.sum[j];
		const float keep = a.sinks ? add_sink(a.sinks[head_of(j)], max, sum) : 1.f;
#pragma unroll
		for (uint32_t i = 0; i < kQueries; ++i) {
			if (i != j) continue;
#pragma unroll
			for (uint32_t part = 0; part < kParts; ++part)
				if (const uint32_t c = threadIdx.x + part * kThreads; c < D)
					a.out[at * D + c] = acc[i][part] * keep * inverse(sum);
		}
		if (a.lse && threadIdx.x == 0) a.lse[at] = log_sum(max, sum);
	}
}

__global__ void __launch_bounds__(kThreads, kBlocks) attend_prompt_kernel(AttendPromptArgs a) {
	attend_rows<false, kMostParts>(a);
}
__global__ void __launch_bounds__(kThreads, kNarrowBlocks) attend_prompt_narrow_kernel(AttendPromptArgs a) {
	attend_rows<false, 1>(a);
}
__global__ void __launch_bounds__(kThreads, kBlocks) attend_latent_prompt_kernel(AttendPromptArgs a) {
	attend_rows<true, kMostParts>(a);
}

// Parts of one row and head, merged in order. Grid: rows in x, heads in y.
__global__ void attend_merge_kernel(AttendMergeArgs a) {
	const uint32_t row = blockIdx.x, head = blockIdx.y, D = a.head_dim;
	const uint32_t first = a.row_parts[2 * row], n = a.row_parts[2 * row + 1];
	const uint64_t at = uint64_t(row) * a.n_heads + head;
	float max = minus_inf(), sum = 0;
	for (uint32_t c = threadIdx.x; c < D; c += blockDim.x) {
		float x = 0;
		max = minus_inf(), sum = 0;
		for (uint32_t p = first; p < first + n; ++p) {
			const float* part = a.parts + (uint64_t(p) * a.n_heads + head) * (D + 2);
			if (part[D] == minus_inf() && part[D + 1] == 0) continue; // where all scores are NaN, the sum is
			const float new_max = fmaxf(max, part[D]), add = expf(part[D] - new_max);
			const float keep = max == minus_inf() ? 0.f : expf(max - new_max);
			x = x * keep + add * part[c];
			sum = sum * keep + add * part[D + 1];
			max = new_max;
		}
		if (a.sinks) x *= add_sink(a.sinks[head], max, sum);
		a.out[at * D + c] = x * inverse(sum);
	}
	if (a.lse && threadIdx.x == 0) a.lse[at] = log_sum(max, sum);
}

void add_attend(Kernels& k) {
	k.attend = {{KV_KERNEL(attend, AttendArgs)}};
	k.attend_narrow = {{KV_KERNEL(attend_narrow, AttendArgs)}};
	k.attend_prompt_narrow = {{KV_KERNEL(attend_prompt_narrow, AttendPromptArgs)}};
	k.attend_prompt = {{KV_KERNEL(attend_prompt, AttendPromptArgs)}};
	k.attend_latent = {{KV_KERNEL(attend_latent, AttendArgs)}};
	k.attend_latent_prompt = {{KV_KERNEL(attend_latent_prompt, AttendPromptArgs)}};
	k.unpack_latents = {{KV_KERNEL(unpack_latents, UnpackArgs)}};
	k.attend_merge = {{KV_KERNEL(attend_merge, AttendMergeArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
