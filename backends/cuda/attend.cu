// attend, attend_prompt and attend_merge: softmax over tokens in one pass, a tile at a time; unpack_latents.
//
// A block serves up to 8 queries (pairs of row and query head) of one kv head. While scores of a tile are computed, a
// thread owns a token. While values are added, a thread owns four channels, and groups of threads share the tokens.
#include "backends/cuda/kernels.h"
#include "backends/cuda/page.cuh"

namespace kvrun::cuda::KV_CUDA_BUILD {

// Blocks of 8 queries at once on a processor: nvcc need not save registers for more.
[[maybe_unused]] constexpr uint32_t kBlocks = 3;
// Channels of a query, with the rotated part of latents.
constexpr uint32_t kWide = kMaxHeadDim + 128, kNarrow = kThreads;

template <uint32_t kMost, uint32_t kMostChannels> struct AttendShared { // kMost: queries
	static constexpr uint32_t kRow = kMostChannels;
	Shared<float, kMost * kRow> q;     // at the end, sums of values
	Shared<float, kMost * kThreads> p; // scores of a tile, then weights
	Shared<float, kMost> max, sum;     // of the tokens so far
	Shared<float, kMost> keep;         // factor of the sums so far
};

// A thread's channels c .. c + 3 of values, and which of the tokens it takes.
struct Lane {
	uint32_t c, group, groups;
};
__device__ inline Lane lane_of(uint32_t D) {
	const uint32_t across = D <= 64 ? 16 : (D + 127) / 128 * kWarp; // threads for all channels
	return {threadIdx.x % across * 4, threadIdx.x / across, kThreads / across};
}

// Queries of this block, zeros after the n-th. query(j) is a row of q (row * n_heads + head).
template <uint32_t kMost, class S, class Query>
__device__ inline void load_queries(S& s, const float* q, uint32_t n, uint32_t D, Query query,
                                    const uint32_t* balance) {
	for (uint32_t i = threadIdx.x; i < kMost * D; i += blockDim.x) {
		const float x = i / D < n ? q[uint64_t(query(i / D)) * D + i % D] : 0.f;
		s.q[i / D * S::kRow + i % D] = balance ? x / half_at(balance, i % D) : x; // keys were multiplied by it
	}
	if (threadIdx.x < kMost) s.max[threadIdx.x] = minus_inf(), s.sum[threadIdx.x] = 0;
	__syncthreads();
}

// The part of queries that meets rotated keys, behind the others.
template <uint32_t kMost, class S, class Query>
__device__ inline void load_rope(S& s, const float* q, uint32_t n, uint32_t D, uint32_t rope_dim, Query query) {
	for (uint32_t i = threadIdx.x; i < kMost * rope_dim; i += blockDim.x)
		s.q[i / rope_dim * S::kRow + D + i % rope_dim] =
		    i / rope_dim < n ? q[uint64_t(query(i / rope_dim)) * rope_dim + i % rope_dim] : 0.f;
	__syncthreads();
}

// Adds products of the queries, from their channel `first` on, with token t.
template <uint32_t kMost, class S, class Keys>
__device__ inline void add_dots(S& s, float (&dot)[kMost], const Keys& keys, uint32_t t, uint32_t first = 0) {
	each_quad(keys.head_dim, [&](uint32_t c) {
		const float4 x = keys.quad(t, c);
#pragma unroll
		for (uint32_t j = 0; j < kMost; ++j) {
			const float4 q = s.q.quad(j * S::kRow + first + c);
			dot[j] = fmaf(q.w, x.w, fmaf(q.z, x.z, fmaf(q.y, x.y, fmaf(q.x, x.x, dot[j]))));
		}
	});
}

// Puts the scores of this thread's token, makes weights of the tile's scores and updates the state. sees(j): query j
// attends to the token.
template <uint32_t kMost, class S, class Sees>
__device__ inline void add_scores(S& s, const float (&dot)[kMost], const Scores& scores, Sees sees) {
#pragma unroll
	for (uint32_t j = 0; j < kMost; ++j)
		s.p[j * kThreads + threadIdx.x] = sees(j) ? score_of(scores, dot[j]) : minus_inf();
	__syncthreads();
	for (uint32_t j = threadIdx.x / kWarp; j < kMost; j += kThreads / kWarp) { // a warp per query
		const uint32_t lane = threadIdx.x % kWarp;
		const float before = s.max[j];
		float max = before;
		for (uint32_t i = lane; i < kThreads; i += kWarp) max = fmaxf(max, s.p[j * kThreads + i]);
		max = warp_max(max);
		float sum = 0;
		for (uint32_t i = lane; i < kThreads; i += kWarp) {
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
}

// A weight of 0 may belong to a token whose bits are anything.
__device__ inline void add_value(float4& sum, float p, const float4& v) {
	if (p != 0.f) sum = {fmaf(p, v.x, sum.x), fmaf(p, v.y, sum.y), fmaf(p, v.z, sum.z), fmaf(p, v.w, sum.w)};
}

template <uint32_t kMost, class S> __device__ inline void keep_sums(S& s, float4 (&sum)[kMost]) {
#pragma unroll
	for (uint32_t j = 0; j < kMost; ++j) {
		const float keep = s.keep[j];
		sum[j] = {sum[j].x * keep, sum[j].y * keep, sum[j].z * keep, sum[j].w * keep};
	}
}

// Adds weighted values of n_tokens tokens, whose weights begin at `first` of the tile. Four tokens at a time.
template <uint32_t kMost, class S, class Values>
__device__ inline void add_values(S& s, float4 (&sum)[kMost], const Lane& lane, const Values& values, uint32_t first,
                                  uint32_t n_tokens) {
	for (uint32_t t = lane.group * 4; t < n_tokens; t += lane.groups * 4) {
		int any = 0;
#pragma unroll
		for (uint32_t j = 0; j < kMost; ++j) {
			const float4 p = s.p.quad(j * kThreads + first + t);
			any |= __float_as_int(p.x) | __float_as_int(p.y) | __float_as_int(p.z) | __float_as_int(p.w);
		}
		if (!any || lane.c >= values.head_dim) continue;
		const float4 v0 = values.quad(t, lane.c), v1 = values.quad(t + 1, lane.c), v2 = values.quad(t + 2, lane.c),
		             v3 = values.quad(t + 3, lane.c);
#pragma unroll
		for (uint32_t j = 0; j < kMost; ++j) {
			const float4 p = s.p.quad(j * kThreads + first + t);
			add_value(sum[j], p.x, v0), add_value(sum[j], p.y, v1);
			add_value(sum[j], p.z, v2), add_value(sum[j], p.w, v3);
		}
	}
}

// Adds the sums of all groups in their order; they replace the queries.
template <uint32_t kMost, class S>
__device__ inline void join_sums(S& s, const float4 (&sum)[kMost], const Lane& lane, uint32_t D) {
	for (uint32_t group = 0; group < lane.groups; ++group) {
		__syncthreads();
		if (lane.group != group || lane.c >= D) continue;
#pragma unroll
		for (uint32_t j = 0; j < kMost; ++j) {
			const float4 before = group ? s.q.quad(j * S::kRow + lane.c) : float4{0, 0, 0, 0};
			s.q.set_quad(j * S::kRow + lane.c,
			             {before.x + sum[j].x, before.y + sum[j].y, before.z + sum[j].z, before.w + sum[j].w});
		}
	}
	__syncthreads();
}

// State of query j, as in KvRead::parts.
template <class S> __device__ inline void put_state(S& s, uint32_t j, uint32_t D, float* state) {
	for (uint32_t c = threadIdx.x; c < D; c += kThreads) state[c] = s.q[j * S::kRow + c];
	if (threadIdx.x == 0) state[D] = s.max[j], state[D + 1] = s.sum[j];
}

// Partial states of one work item, tiles of 128 tokens of one to four pages. Grid: work items times `blocks` in x, kv
// heads in y.
template <uint32_t kMost, uint32_t kMostChannels, bool kLatent>
__device__ inline void attend_item(const AttendArgs& a) {
	__shared__ AttendShared<kMost, kMostChannels> s;
	const uint32_t* words = a.work + uint64_t(a.first_work + blockIdx.x / a.blocks) * ATTEND_WORDS;
	const AttendWork w = {words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]};
	const uint32_t h = blockIdx.y, D = a.head_dim, share = a.n_heads / a.n_kv_heads;
	const uint32_t rows = a.n_rows - w.row < a.item_rows ? a.n_rows - w.row : a.item_rows;
	const uint32_t first = blockIdx.x % a.blocks * kMost, all = rows * share;
	if (first >= all) return;
	const uint32_t n = all - first < kMost ? all - first : kMost;
	const auto head_of = [&](uint32_t j) { return h * share + (first + j) % share; };
	const auto row_of = [&](uint32_t j) { return (first + j) / share; };
	const auto query = [&](uint32_t j) { return (w.row + row_of(j)) * a.n_heads + head_of(j); };
	load_queries<kMost>(s, a.q, n, D, query, a.balance ? a.balance + w.balance + h * D / 2 : nullptr);
	if (kLatent) load_rope<kMost>(s, a.q_rope, n, D, a.rope_dim, query);
	if (a.k.rotate) rotate_rows(s.q, n, s.kRow, D, false); // as the keys are
	const auto entry = [&](uint32_t page) { return a.tables + w.pages + page * 4; };
	const auto live = [&](uint32_t page) { return a.tables + w.live + h * w.live_stride + page * 4; };
	const auto keys = [&](CodeSide side, uint32_t page) {
		const uint32_t* at = entry(page);
		return PageKeys{
		    {a.k_codes + at[0], a.k_params ? a.k_params + at[2] : nullptr, side, h, D, a.page, a.n_kv_heads}};
	};
	const auto values = [&](CodeSide side, uint32_t page) {
		const uint32_t* at = entry(page);
		return PageValues{{a.v_codes + at[1], a.v_params ? a.v_params + at[3] : nullptr, side, h,
		                   kLatent ? a.rope_dim : D, a.page, a.n_kv_heads},
		                  side.factors ? a.v_factors + a.tables[w.factors + page] : nullptr};
	};
	const Lane lane = lane_of(D);
	const uint32_t in_tile = kThreads / a.page, own = threadIdx.x / a.page, t = threadIdx.x % a.page;
	float4 sum[kMost] = {};
	for (uint32_t p = 0; p < w.n_pages; p += in_tile) {
		const uint32_t end = w.n_pages - p < in_tile ? w.n_pages - p : in_tile; // pages of this tile
		uint32_t any = 0;
		for (uint32_t page = 0; page < end; ++page)
			for (uint32_t i = 0; i < a.page / 32; ++i) any |= live(p + page)[i];
		if (!any) continue; // uniform over the block
		const bool sees = own < end && is_live(live(p + own), t);
		float dot[kMost] = {};
		if (sees) { // other slots may hold any bits
			const auto add = [&](CodeSide side) { add_dots(s, dot, keys(side, p + own), t); };
			if constexpr (kLatent) {
				known_latents(a.k, add);
				add_dots(s, dot, values(a.v, p + own), t, D);
			} else {
				known_keys(a.k, add);
			}
		}
		add_scores(s, dot, a.scores, [&](uint32_t) { return sees; });
		keep_sums(s, sum);
		for (uint32_t page = 0; page < end; ++page) {
			const auto add = [&](const auto& v) { add_values(s, sum, lane, v, page * a.page, a.page); };
			if constexpr (kLatent)
				known_latents(a.k, [&](CodeSide side) { add(keys(side, p + page)); });
			else
				known_values(a.v, [&](CodeSide side) { add(values(side, p + page)); });
		}
		__syncthreads(); // before the next tile's scores
	}
	join_sums(s, sum, lane, D);
	if (kLatent ? a.k.rotate : a.v.rotate) rotate_rows(s.q, n, s.kRow, D, true); // as the values were
	for (uint32_t j = 0; j < n; ++j) {
		const uint64_t part = w.part + uint64_t(row_of(j)) * a.part_step;
		put_state(s, j, D, a.parts + (part * a.n_heads + head_of(j)) * (D + 2));
	}
}

__global__ void __launch_bounds__(kThreads, kBlocks) attend_kernel(AttendArgs a) {
	attend_item<kQueries, kWide, false>(a);
}
__global__ void __launch_bounds__(kThreads, kBlocks) attend_narrow_kernel(AttendArgs a) {
	attend_item<kQueries, kNarrow, false>(a);
}
__global__ void __launch_bounds__(kThreads, kAttendBlocks) attend_4_kernel(AttendArgs a) {
	attend_item<4, kWide, false>(a);
}
__global__ void __launch_bounds__(kThreads, kAttendBlocks) attend_2_kernel(AttendArgs a) {
	attend_item<2, kWide, false>(a);
}
__global__ void __launch_bounds__(kThreads, kAttendBlocks) attend_1_kernel(AttendArgs a) {
	attend_item<1, kWide, false>(a);
}
__global__ void __launch_bounds__(kThreads, kBlocks) attend_latent_kernel(AttendArgs a) {
	attend_item<kQueries, kWide, true>(a);
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
			for (uint32_t c = threadIdx.x * 4; c < a.k_dim; c += kThreads * 4) x.set_quad(c, keys.quad(t, c));
			if (a.k_side.rotate) rotate_rows(x, 1, a.k_dim, a.k_dim, true);
			__syncthreads();
			put(a.k + row * (a.k_dim / 2), a.k_dim);
			__syncthreads();
			for (uint32_t c = threadIdx.x * 4; c < a.v_dim; c += kThreads * 4) x.set_quad(c, values.quad(t, c));
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

// Rows of a prompt over its own tokens, causal, or those of them whose bits are set. Tiles begin at token 0, whatever
// rows share the block. Grid: groups of 8 queries in x, kv heads in y.
template <uint32_t kMostChannels, bool kLatent> __device__ inline void attend_rows(const AttendPromptArgs& a) {
	__shared__ AttendShared<kQueries, kMostChannels> s;
	const uint32_t h = blockIdx.y, D = a.head_dim, share = a.n_heads / a.n_kv_heads;
	const uint32_t first = blockIdx.x * kQueries, all = a.n_rows * share;
	const uint32_t n = all - first < kQueries ? all - first : kQueries;
	const auto head_of = [&](uint32_t j) { return h * share + (first + j) % share; };
	const auto row_of = [&](uint32_t j) { return (first + j) / share; };
	const auto query = [&](uint32_t j) { return row_of(j) * a.n_heads + head_of(j); };
	load_queries<kQueries>(s, a.q, n, D, query, nullptr);
	if (kLatent) load_rope<kQueries>(s, a.q_rope, n, D, a.rope_dim, query);
	const uint32_t last = row_of(n - 1) + 1 + a.ahead,
	               seen = a.first + (last < a.n_rows ? last : a.n_rows); // tokens that the last row sees
	const uint32_t v_dim = kLatent ? a.rope_dim : D;
	const auto first_seen = [&](uint32_t token) {
		const uint32_t from = a.chunked ? token / a.window * a.window : token < a.window ? 0u : token - a.window + 1;
		return a.ahead >= a.n_rows && a.first < from ? a.first : from;
	};
	const Lane lane = lane_of(D);
	float4 sum[kQueries] = {};
	for (uint32_t t0 = first_seen(a.first + row_of(0)) / kThreads * kThreads; t0 < seen; t0 += kThreads) {
		const Rows keys = {a.k + uint64_t(h) * a.t_cap * (D / 2), t0, D, seen - 1};
		const Rows values = {a.v + uint64_t(h) * a.t_cap * (v_dim / 2), t0, v_dim, seen - 1};
		const uint32_t t = t0 + threadIdx.x;
		const auto sees = [&](uint32_t j) {
			return t <= a.first + row_of(j) + a.ahead && t < seen && t >= first_seen(a.first + row_of(j)) && j < n &&
			       is_seen(a.seen, row_of(j), h, t);
		};
		float dot[kQueries] = {};
		if (t < seen) {
			add_dots(s, dot, keys, threadIdx.x);
			if (kLatent) add_dots(s, dot, values, threadIdx.x, D);
		}
		if (a.slopes) {
			const auto far = [&](uint32_t j) { return fabsf(float(t) - float(a.first + row_of(j))); };
#pragma unroll
			for (uint32_t j = 0; j < kQueries; ++j)
				if (j < n) dot[j] -= a.slopes[head_of(j)] * far(j) / a.scores.scale; // there is no cap
		}
		add_scores(s, dot, a.scores, sees);
		keep_sums(s, sum);
		add_values(s, sum, lane, kLatent ? keys : values, 0, seen - t0 < kThreads ? seen - t0 : kThreads);
		__syncthreads(); // before the scores of a prompt's next tile
	}
	join_sums(s, sum, lane, D);
	for (uint32_t j = 0; j < n; ++j) {
		const uint64_t row = row_of(j), at = row * a.n_heads + head_of(j);
		if (a.row_parts) { // the state goes to the row's last part
			const uint64_t part = a.row_parts[2 * row] + a.row_parts[2 * row + 1] - 1;
			put_state(s, j, D, a.parts + (part * a.n_heads + head_of(j)) * (D + 2));
			continue;
		}
		float max = s.max[j], sum = s.sum[j];
		const float keep = a.sinks ? add_sink(a.sinks[head_of(j)], max, sum) : 1.f;
		for (uint32_t c = threadIdx.x; c < D; c += kThreads)
			a.out[at * D + c] = s.q[j * s.kRow + c] * keep * inverse(sum);
		if (a.lse && threadIdx.x == 0) a.lse[at] = log_sum(max, sum);
	}
}

__global__ void __launch_bounds__(kThreads, kBlocks) attend_prompt_kernel(AttendPromptArgs a) {
	attend_rows<kWide, false>(a);
}
__global__ void __launch_bounds__(kThreads, kBlocks) attend_prompt_narrow_kernel(AttendPromptArgs a) {
	attend_rows<kNarrow, false>(a);
}
__global__ void __launch_bounds__(kThreads, kBlocks) attend_latent_prompt_kernel(AttendPromptArgs a) {
	attend_rows<kWide, true>(a);
}

// Parts of one row and head, 128 at a time. Grid: rows in x, heads in y.
__global__ void __launch_bounds__(kThreads) attend_merge_kernel(AttendMergeArgs a) {
	constexpr uint32_t kMostParts = kMaxHeadDim / kThreads; // channels of a thread
	__shared__ Shared<float, kThreads> part_max, part_sum;
	const uint32_t row = blockIdx.x, head = blockIdx.y, D = a.head_dim;
	const uint32_t first = a.row_parts[2 * row], n = a.row_parts[2 * row + 1];
	const uint64_t at = uint64_t(row) * a.n_heads + head;
	const auto part = [&](uint32_t i) { return a.parts + (uint64_t(first + i) * a.n_heads + head) * (D + 2); };
	float max = minus_inf(), sum = 0, x[kMostParts] = {};
	for (uint32_t p0 = 0; p0 < n; p0 += kThreads) {
		const uint32_t end = n - p0 < kThreads ? n - p0 : kThreads, i = threadIdx.x;
		const float own_max = i < end ? part(p0 + i)[D] : minus_inf(), own_sum = i < end ? part(p0 + i)[D + 1] : 0.f;
		part_max[i] = own_max;
		__syncthreads();
		const float before = max;
		for (uint32_t j = 0; j < end; ++j) max = fmaxf(max, part_max[j]);
		__syncthreads(); // every thread has read the maxima
		// where all scores are NaN, the sum is
		const float factor = own_max == minus_inf() && own_sum == 0 ? 0.f : expf(own_max - max);
		part_max[i] = factor, part_sum[i] = factor * own_sum;
		__syncthreads();
		const float keep = before == minus_inf() ? 0.f : expf(before - max);
		sum *= keep;
		for (uint32_t j = 0; j < end; ++j) sum += part_sum[j];
#pragma unroll
		for (uint32_t k = 0; k < kMostParts; ++k) {
			const uint32_t c = threadIdx.x + k * kThreads;
			if (c >= D) continue;
			x[k] *= keep;
#pragma unroll 8
			for (uint32_t j = 0; j < end; ++j) x[k] = fmaf(part_max[j], part(p0 + j)[c], x[k]);
		}
		__syncthreads(); // before the next parts
	}
	const float keep = a.sinks ? add_sink(a.sinks[head], max, sum) : 1.f;
#pragma unroll
	for (uint32_t k = 0; k < kMostParts; ++k)
		if (const uint32_t c = threadIdx.x + k * kThreads; c < D) a.out[at * D + c] = x[k] * keep * inverse(sum);
	if (a.lse && threadIdx.x == 0) a.lse[at] = log_sum(max, sum);
}

void add_attend(Kernels& k) {
	k.attend = {{KV_KERNEL(attend, AttendArgs)}};
	k.attend_narrow = {{KV_KERNEL(attend_narrow, AttendArgs)}};
	k.attend_4 = {{KV_KERNEL(attend_4, AttendArgs)}};
	k.attend_2 = {{KV_KERNEL(attend_2, AttendArgs)}};
	k.attend_1 = {{KV_KERNEL(attend_1, AttendArgs)}};
	k.attend_prompt_narrow = {{KV_KERNEL(attend_prompt_narrow, AttendPromptArgs)}};
	k.attend_prompt = {{KV_KERNEL(attend_prompt, AttendPromptArgs)}};
	k.attend_latent = {{KV_KERNEL(attend_latent, AttendArgs)}};
	k.attend_latent_prompt = {{KV_KERNEL(attend_latent_prompt, AttendPromptArgs)}};
	k.unpack_latents = {{KV_KERNEL(unpack_latents, UnpackArgs)}};
	k.attend_merge = {{KV_KERNEL(attend_merge, AttendMergeArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
