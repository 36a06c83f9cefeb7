// matvec (rows of decode steps) and matmul (rows of a prompt). A row's sum is always added in the same order, whatever
// other rows and weights are multiplied with it.
#include "backends/cuda/kernels.h"
#include "backends/cuda/weights.cuh"
#include "shared/experts.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

__device__ inline bool gated(const MatmulArgs& a) { return a.mode == kSwiGlu || a.mode == kClampedSwiGlu; }

// Stores the sum of one element; `second` is the sum with w[1].
__device__ inline void put(const MatmulArgs& a, uint32_t t, uint32_t r, float first, float second) {
	float& out = a.out[uint64_t(t) * a.rows + r];
	first += a.bias[0] ? a.bias[0][r] : 0.f;
	if (gated(a)) second += a.bias[1] ? a.bias[1][r] : 0.f;
	if (a.mode == kSwiGlu) {
		out = first / (1 + expf(-first)) * second; // silu(g) * u
	} else if (a.mode == kClampedSwiGlu) {
		first = fminf(first, KV_GLU_LIMIT);
		second = fminf(fmaxf(second, -KV_GLU_LIMIT), KV_GLU_LIMIT);
		out = first / (1 + expf(-KV_GLU_ALPHA * first)) * (second + 1);
	} else
		out = a.mode == kAdd ? out + first : first;
}

// The arguments with the weights and biases of one expert.
__device__ inline MatmulArgs of_expert(MatmulArgs a, uint32_t expert) {
	for (uint32_t i = 0; i < 2; ++i) {
		const uint64_t row = uint64_t(expert) * a.rows;
		if (a.w[i].rows)
			a.w[i].rows = static_cast<const uint4*>(a.w[i].rows) + row * weight_row_pieces(a.w[i].traits, a.w[i].cols);
		if (a.bias[i]) a.bias[i] += row;
	}
	return a;
}

// ---- matvec: a warp per weight row, a lane per 16 columns, up to 8 rows of x

// A unit of a row of x; zeros past its end. kWhole: there are whole units only, at multiples of 16 bytes.
template <bool kWhole> __device__ inline void x_unit(const float* in, uint32_t elements, float (&v)[kUnit]) {
	if constexpr (kWhole) {
#pragma unroll
		for (uint32_t i = 0; i < kUnit; i += 4) {
			const float4 quad = reinterpret_cast<const float4*>(in)[i / 4];
			v[i] = quad.x, v[i + 1] = quad.y, v[i + 2] = quad.z, v[i + 3] = quad.w;
		}
	} else {
#pragma unroll
		for (uint32_t i = 0; i < kUnit; ++i) v[i] = i < elements ? in[i] : 0.f;
	}
}

// Adds this lane's products of a weight row with n rows of x, at most kMost. Products are added in the same order
// whatever kMost is, so that a row's bits do not depend on the others.
template <bool kWhole, uint32_t kMost>
__device__ inline void lane_sums(const Weight& w, uint32_t row, const float* x, uint32_t n, float (&sum)[kMost]) {
	const WeightRow weights = weight_row(w, row);
	[[maybe_unused]] constexpr uint32_t kTogether = kWhole ? 2 : 1; // units whose loads are under way together
#pragma unroll kTogether
	for (uint32_t unit = threadIdx.x % kWarp; unit * kUnit < w.cols; unit += kWarp) {
		float e[kUnit];
		weight_unit(weights, unit, e);
		const uint32_t elements = w.cols - unit * kUnit < kUnit ? w.cols - unit * kUnit : kUnit;
#pragma unroll
		for (uint32_t t = 0; t < kMost; ++t) {
			if (t >= n) continue;
			float v[kUnit];
			x_unit<kWhole>(x + uint64_t(t) * w.cols + unit * kUnit, elements, v);
#pragma unroll
			for (uint32_t i = 0; i < kUnit; ++i) sum[t] += e[i] * v[i];
		}
	}
}

// sum[t] = w[row] . x[t], in every lane. kKnown: one row of x, and both are as reads_units() of cuda_ops.cpp says.
template <bool kKnown, uint32_t kMost>
__device__ inline void row_sums(const Weight& any, uint32_t row, const float* x, uint32_t n, float (&sum)[kMost]) {
#pragma unroll
	for (uint32_t t = 0; t < kMost; ++t) sum[t] = 0;
	if constexpr (kKnown)
		known_type(any, [&](const Weight& w) { lane_sums<true>(w, row, x, n, sum); });
	else
		lane_sums<false>(any, row, x, n, sum);
#pragma unroll
	for (uint32_t t = 0; t < kMost; ++t)
		if (t < n) sum[t] = warp_sum(sum[t]);
}

// a.w[i], member by member: a choice between addresses would put both into local memory.
__device__ inline Weight weight_of(const MatmulArgs& a, uint32_t i) {
	const Weight &p = a.w[0], &q = a.w[1];
	const WeightTraits &s = p.traits, &t = q.traits;
	return {i ? q.rows : p.rows,
	        i ? q.cols : p.cols,
	        i ? q.type : p.type,
	        {i ? t.codes : s.codes, i ? t.code_bytes : s.code_bytes, i ? t.high : s.high, i ? t.scale : s.scale,
	         i ? t.scale_bytes : s.scale_bytes, i ? t.factor_bytes : s.factor_bytes, i ? t.zero : s.zero},
	        i ? q.grids : p.grids};
}

// Sums with the first weight and, where there are two, with the second. One loop, so that code is inlined once.
template <bool kKnown, uint32_t kMost>
__device__ inline void both_sums(const MatmulArgs& a, uint32_t row, const float* x, uint32_t n, float (&sum)[kMost],
                                 float (&second)[kMost]) {
#pragma unroll 1
	for (uint32_t i = gated(a) ? 2 : 1; i-- > 0;) {
#pragma unroll
		for (uint32_t t = 0; t < kMost; ++t) second[t] = i ? 0.f : sum[t];
		row_sums<kKnown>(weight_of(a, i), row, x, n, sum);
	}
}

// Grid: weight rows in x, 4 per block; rows of x in y, 8 per block.
__global__ void matvec_kernel(MatmulArgs a) {
	const uint32_t r = blockIdx.x * kVecWarps + threadIdx.x / kWarp, first = blockIdx.y * kVecTokens;
	if (r >= a.rows) return; // whole warps
	const uint32_t n = a.tokens - first < kVecTokens ? a.tokens - first : kVecTokens;
	const float* x = a.x + uint64_t(first) * a.w[0].cols;
	float sum[kVecTokens] = {}, second[kVecTokens];
	both_sums<false>(a, r, x, n, sum, second);
	if (threadIdx.x % kWarp) return;
#pragma unroll
	for (uint32_t t = 0; t < kVecTokens; ++t)
		if (t < n) put(a, first + t, r, sum[t], second[t]);
}

// The same for one row of x and weights that reads_units() allows. Grid: weight rows in x, 4 per block.
__global__ void __launch_bounds__(kVecWarps* kWarp) matvec_row_kernel(MatmulArgs a) {
	const uint32_t r = blockIdx.x * kVecWarps + threadIdx.x / kWarp;
	if (r >= a.rows) return; // whole warps
	float sum[1] = {}, second[1];
	both_sums<true>(a, r, a.x, 1, sum, second);
	if (threadIdx.x % kWarp == 0) put(a, 0, r, sum[0], second[0]);
}

template <bool kKnown> __device__ inline void expert_row(const ExpertMatmulArgs& e) {
	const uint32_t r = blockIdx.x * kVecWarps + threadIdx.x / kWarp, slot = blockIdx.y;
	if (r >= e.m.rows) return; // whole warps
	const MatmulArgs a = of_expert(e.m, e.list[slot]);
	float sum[1] = {}, second[1];
	both_sums<kKnown>(a, r, a.x + uint64_t(slot / e.share) * a.w[0].cols, 1, sum, second);
	if (threadIdx.x % kWarp == 0) put(a, slot, r, sum[0], second[0]);
}

// Grid: weight rows of an expert in x, 4 per block; slots in y. _row: weights that reads_units() allows.
__global__ void expert_matvec_kernel(ExpertMatmulArgs e) { expert_row<false>(e); }
__global__ void __launch_bounds__(kVecWarps* kWarp) expert_matvec_row_kernel(ExpertMatmulArgs e) {
	expert_row<true>(e);
}

// ---- matmul: tiles of 64 rows of x by 64 weight rows, 64 columns at a time through shared memory

constexpr uint32_t kPitch = kTile + 1; // neighbouring columns fall into different banks
constexpr uint32_t kSide = 4;          // a thread's sums: kSide rows of x by kSide weight rows, 16 apart
constexpr uint32_t kAcross = kTile / kSide;

struct TileShared {
	Shared<float, kTile * kPitch> w, x; // [column][row]
};

// sum[i][j]: columns ty + 16 i of the tile of x and weight rows first_r + tx + 16 j. in(i): row i of the tile, or null.
template <class F>
__device__ inline void tile_sums(const MatmulArgs& a, const Weight& w, uint32_t first_r, TileShared& s,
                                 float (&sum)[kSide][kSide], F in) {
	const uint32_t tx = threadIdx.x % kAcross, ty = threadIdx.x / kAcross;
	for (uint32_t i = 0; i < kSide; ++i)
		for (uint32_t j = 0; j < kSide; ++j) sum[i][j] = 0;
	// each thread loads one unit of a weight row and of a row of x
	const uint32_t row = threadIdx.x / (kTile / kUnit), at = threadIdx.x % (kTile / kUnit) * kUnit;
	const float* x = in(row);
	for (uint32_t c0 = 0; c0 < w.cols; c0 += kTile) {
		float e[kUnit] = {};
		if (first_r + row < a.rows && c0 + at < w.cols) weight_unit(weight_row(w, first_r + row), (c0 + at) / kUnit, e);
		for (uint32_t i = 0; i < kUnit; ++i) {
			const uint32_t c = c0 + at + i;
			s.w[(at + i) * kPitch + row] = c < w.cols ? e[i] : 0.f;
			s.x[(at + i) * kPitch + row] = x && c < w.cols ? x[c] : 0.f;
		}
		__syncthreads();
		for (uint32_t c = 0; c < kTile; ++c) {
			float wr[kSide], xr[kSide];
#pragma unroll
			for (uint32_t i = 0; i < kSide; ++i) {
				wr[i] = s.w[c * kPitch + tx + i * kAcross];
				xr[i] = s.x[c * kPitch + ty + i * kAcross];
			}
#pragma unroll
			for (uint32_t i = 0; i < kSide; ++i)
#pragma unroll
				for (uint32_t j = 0; j < kSide; ++j) sum[i][j] += xr[i] * wr[j];
		}
		__syncthreads(); // before the next columns are brought
	}
}

// Computes and stores the sums of 64 weight rows and a tile of x. out(i): the row of out for row i of the tile;
// negative: none.
template <class In, class Out> __device__ inline void multiply_tile(const MatmulArgs& a, In in, Out out) {
	__shared__ TileShared s;
	const uint32_t first_r = blockIdx.x * kTile;
	float sum[kSide][kSide], second[kSide][kSide] = {};
	tile_sums(a, a.w[0], first_r, s, sum, in);
	if (gated(a)) tile_sums(a, a.w[1], first_r, s, second, in);
#pragma unroll
	for (uint32_t i = 0; i < kSide; ++i) {
		const int64_t t = out(threadIdx.x / kAcross + i * kAcross);
#pragma unroll
		for (uint32_t j = 0; j < kSide; ++j) {
			const uint32_t r = first_r + threadIdx.x % kAcross + j * kAcross;
			if (t >= 0 && r < a.rows) put(a, uint32_t(t), r, sum[i][j], second[i][j]);
		}
	}
}

// Grid: weight rows in x, rows of x in y, 64 of each per block.
__global__ void __launch_bounds__(kMatmulThreads) matmul_kernel(MatmulArgs a) {
	const uint32_t first = blockIdx.y * kTile;
	multiply_tile(
	    a, [&](uint32_t i) { return first + i < a.tokens ? a.x + uint64_t(first + i) * a.w[0].cols : nullptr; },
	    [&](uint32_t i) { return first + i < a.tokens ? int64_t(first + i) : int64_t(-1); });
}

// Grid: weight rows of an expert in x, tiles of slots in y.
static_assert(KV_EXPERT_TILE == kTile);
__global__ void __launch_bounds__(kMatmulThreads) expert_matmul_kernel(ExpertMatmulArgs e) {
	const uint32_t *tile = e.list + uint64_t(blockIdx.y) * KV_TILE_WORDS, *slots = tile + 1;
	if (*slots == KV_NO_SLOT) return; // the whole block returns
	const MatmulArgs a = of_expert(e.m, *tile);
	multiply_tile(
	    a,
	    [&](uint32_t i) { return slots[i] == KV_NO_SLOT ? nullptr : a.x + uint64_t(slots[i] / e.share) * a.w[0].cols; },
	    [&](uint32_t i) { return slots[i] == KV_NO_SLOT ? int64_t(-1) : int64_t(slots[i]); });
}

void add_matmul(Kernels& k) {
	k.matvec = {{KV_KERNEL(matvec, MatmulArgs)}};
	k.matvec_row = {{KV_KERNEL(matvec_row, MatmulArgs)}};
	k.matmul = {{KV_KERNEL(matmul, MatmulArgs)}};
	k.expert_matvec = {{KV_KERNEL(expert_matvec, ExpertMatmulArgs)}};
	k.expert_matvec_row = {{KV_KERNEL(expert_matvec_row, ExpertMatmulArgs)}};
	k.expert_matmul = {{KV_KERNEL(expert_matmul, ExpertMatmulArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
