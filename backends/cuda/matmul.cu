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

// ---- matvec: a block for one weight row or a few, a thread for two units (32 columns) at a time

constexpr uint32_t kPair = 2 * kUnit;
// Blocks at once on a processor: nvcc need not save registers for more.
[[maybe_unused]] constexpr uint32_t kVecBlocks = 4;

// A block's sums of n pairs of weight row and row of x, added in the same order by all kernels: those of a thread, of a
// warp, of the block.
template <uint32_t n> struct BlockSums {
	Shared<float, n * kVecWarps> partial;
	__device__ void put(uint32_t i, float x) { // called by all threads
		x = warp_sum(x);
		if (threadIdx.x % kWarp == 0) partial[i * kVecWarps + threadIdx.x / kWarp] = x;
	}
	__device__ float sum(uint32_t i) { // after a barrier
		float x = partial[i * kVecWarps];
		for (uint32_t w = 1; w < kVecWarps; ++w) x += partial[i * kVecWarps + w];
		return x;
	}
};

// Adds this thread's products of a weight row with n rows of x.
__device__ inline void add_products(const Weight& w, uint32_t row, const float* x, uint32_t n,
                                    float (&sum)[kVecTokens]) {
	const WeightRow weights = weight_row(w, row);
	for (uint32_t i = threadIdx.x; i * kPair < w.cols; i += kVecWarps * kWarp) {
#pragma unroll 1
		for (uint32_t unit = 2 * i; unit < 2 * i + 2 && unit * kUnit < w.cols; ++unit) {
			float e[kUnit];
			weight_unit(weights, unit, e);
			const uint32_t elements = w.cols - unit * kUnit < kUnit ? w.cols - unit * kUnit : kUnit;
#pragma unroll
			for (uint32_t t = 0; t < kVecTokens; ++t) {
				if (t >= n) continue;
				const float* in = x + uint64_t(t) * w.cols + unit * kUnit;
#pragma unroll
				for (uint32_t i = 0; i < kUnit; ++i) sum[t] += e[i] * (i < elements ? in[i] : 0.f);
			}
		}
	}
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

// Weights of any type, up to 8 rows of x: out rows first .. first + n of weight row r.
__device__ inline void any_row(const MatmulArgs& a, uint32_t r, const float* x, uint32_t first, uint32_t n) {
	__shared__ BlockSums<2 * kVecTokens> s;
	float sum[kVecTokens] = {}, second[kVecTokens];
#pragma unroll 1
	for (uint32_t i = gated(a) ? 2 : 1; i-- > 0;) { // one loop, so that code is inlined once
#pragma unroll
		for (uint32_t t = 0; t < kVecTokens; ++t) second[t] = i ? 0.f : sum[t], sum[t] = 0;
		add_products(weight_of(a, i), r, x, n, sum);
	}
#pragma unroll
	for (uint32_t t = 0; t < kVecTokens; ++t) {
		if (t >= n) continue;
		s.put(t, sum[t]);
		if (gated(a)) s.put(kVecTokens + t, second[t]);
	}
	__syncthreads();
	if (const uint32_t t = threadIdx.x; t < n) put(a, first + t, r, s.sum(t), gated(a) ? s.sum(kVecTokens + t) : 0.f);
}

// Place in shared memory of quad i of a block's part of x, so that neighbouring threads, which are eight quads apart,
// read from different banks.
__device__ inline uint32_t quad_at(uint32_t i) { return (i / 8 * 8 + (i + i / 8) % 8) * 4; }

// Four rows of a weight, or two of each of two, by one row of x: each part of x is read once for all of them. For
// weights as reads_units() of cuda_ops.cpp says.
__device__ inline void known_rows(const MatmulArgs& a, const float* x, uint32_t out_row) {
	__shared__ Shared<float, kVecWarps * kWarp * kPair> part;
	__shared__ BlockSums<kVecRows> s;
	const uint32_t rows = gated(a) ? kVecRows / 2 : kVecRows, first = blockIdx.x * rows, cols = a.w[0].cols;
	float sum[kVecRows] = {};
	known_type(a.w[0], [&](const Weight& w) {
		WeightRow weights[kVecRows];
#pragma unroll
		for (uint32_t j = 0; j < kVecRows; ++j) {
			const uint32_t r = first + j % rows < a.rows ? first + j % rows : a.rows - 1;
			weights[j] = weight_row({j < rows ? w.rows : a.w[1].rows, w.cols, w.type, w.traits, w.grids}, r);
		}
		const uint32_t lane = threadIdx.x % kWarp, own = threadIdx.x - lane; // a warp reads what it has put
		for (uint32_t pair0 = own; pair0 * kPair < cols; pair0 += kVecWarps * kWarp) {
#pragma unroll
			for (uint32_t i = 0; i < kPair / 4; ++i) {
				const uint32_t quad = i * kWarp + lane, c = pair0 * kPair + quad * 4;
				const float4 zero = {0, 0, 0, 0};
				part.set_quad(own * kPair + quad_at(quad), c < cols ? reinterpret_cast<const float4*>(x)[c / 4] : zero);
			}
			__syncwarp(); // before a part of x is read
			const uint32_t pair = pair0 + lane;
			if (pair * kPair < cols) {
				UnitScale scale[kVecRows];
#pragma unroll
				for (uint32_t u = 0; u < 2; ++u) {
					float4 v[kUnit / 4];
#pragma unroll
					for (uint32_t i = 0; i < kUnit / 4; ++i)
						v[i] = part.quad(own * kPair + quad_at(lane * (kPair / 4) + u * (kUnit / 4) + i));
#pragma unroll
					for (uint32_t j = 0; j < kVecRows; ++j) {
						float e[kUnit];
						weight_unit(weights[j], pair * 2 + u, e, [&] {
							if (u == 0 || scales_units(w.traits)) scale[j] = unit_scale(weights[j], pair * 2 + u);
							return scale[j];
						});
#pragma unroll
						for (uint32_t i = 0; i < kUnit; i += 4) {
							sum[j] += e[i] * v[i / 4].x, sum[j] += e[i + 1] * v[i / 4].y;
							sum[j] += e[i + 2] * v[i / 4].z, sum[j] += e[i + 3] * v[i / 4].w;
						}
					}
				}
			}
			__syncwarp(); // before the next part of x
		}
	});
#pragma unroll
	for (uint32_t j = 0; j < kVecRows; ++j) s.put(j, sum[j]);
	__syncthreads();
	if (const uint32_t j = threadIdx.x; j < rows && first + j < a.rows)
		put(a, out_row, first + j, s.sum(j), gated(a) ? s.sum(rows + j) : 0.f);
}

// Grid: weight rows in x; rows of x in y, 8 per block.
__global__ void __launch_bounds__(kVecWarps* kWarp, kVecBlocks) matvec_kernel(MatmulArgs a) {
	const uint32_t first = blockIdx.y * kVecTokens;
	const uint32_t n = a.tokens - first < kVecTokens ? a.tokens - first : kVecTokens;
	any_row(a, blockIdx.x, a.x + uint64_t(first) * a.w[0].cols, first, n);
}
// The same for one row of x. Grid: weight rows in x, as many per block as known_rows() takes.
__global__ void __launch_bounds__(kVecWarps* kWarp) matvec_row_kernel(MatmulArgs a) { known_rows(a, a.x, 0); }

// Grid: weight rows of an expert in x; slots in y.
__global__ void __launch_bounds__(kVecWarps* kWarp, kVecBlocks) expert_matvec_kernel(ExpertMatmulArgs e) {
	const uint32_t slot = blockIdx.y;
	any_row(of_expert(e.m, e.list[slot]), blockIdx.x, e.m.x + uint64_t(slot / e.share) * e.m.w[0].cols, slot, 1);
}
// Grid: weight rows of an expert in x, as many per block as known_rows() takes; slots in y.
__global__ void __launch_bounds__(kVecWarps* kWarp) expert_matvec_row_kernel(ExpertMatmulArgs e) {
	const uint32_t slot = blockIdx.y;
	known_rows(of_expert(e.m, e.list[slot]), e.m.x + uint64_t(slot / e.share) * e.m.w[0].cols, slot);
}

// ---- matmul: tiles of 128 weight rows by 128 or 64 rows of x, 32 columns at a time through shared memory

constexpr uint32_t kColumns = 32;
constexpr uint32_t kAcross = 16; // threads in each direction; a thread has groups of four neighbouring rows, 64 apart
constexpr uint32_t kApart = kAcross * 4;

// [column][row]; a row of four more floats, so that threads with different columns write to different banks.
template <uint32_t kRows> struct TilePart {
	static constexpr uint32_t kPitch = kRows + 4;
	Shared<float, kColumns * kPitch> values;
	__device__ void put(uint32_t c, uint32_t row, float x) { values[c * kPitch + row] = x; }
	// Those of a thread's rows: groups of four.
	__device__ void rows(uint32_t c, uint32_t thread, float (&out)[kRows / kAcross]) {
#pragma unroll
		for (uint32_t i = 0; i < kRows / kApart; ++i) {
			const float4 four = values.quad(c * kPitch + i * kApart + thread * 4);
			out[4 * i] = four.x, out[4 * i + 1] = four.y, out[4 * i + 2] = four.z, out[4 * i + 3] = four.w;
		}
	}
};
__device__ inline uint32_t tile_row(uint32_t thread, uint32_t i) { return i / 4 * kApart + thread * 4 + i % 4; }

template <uint32_t kRows> struct TileShared { // kRows: of x
	TilePart<kTileRows> w;
	TilePart<kRows> x;
};
template <uint32_t kRows> using TileSums = float[kRows / kAcross][kTileRows / kAcross];

// sum[i][j]: rows tile_row(ty, i) of the tile of x and first_r + tile_row(tx, j) of the weight. in(i): row i of the
// tile, or null.
template <uint32_t kRows, class In>
__device__ inline void tile_sums(const MatmulArgs& a, const Weight& w, uint32_t first_r, TileShared<kRows>& s,
                                 TileSums<kRows>& sum, In in) {
	const uint32_t tx = threadIdx.x % kAcross, ty = threadIdx.x / kAcross;
#pragma unroll
	for (uint32_t i = 0; i < kRows / kAcross; ++i)
#pragma unroll
		for (uint32_t j = 0; j < kTileRows / kAcross; ++j) sum[i][j] = 0;
	// a thread loads one unit of a weight row, and elements of x of one column
	const uint32_t w_row = threadIdx.x / 2, at = threadIdx.x % 2 * kUnit, own_c = threadIdx.x % kColumns;
	for (uint32_t c0 = 0; c0 < w.cols; c0 += kColumns) {
		float e[kUnit] = {};
		if (first_r + w_row < a.rows && c0 + at < w.cols)
			weight_unit(weight_row(w, first_r + w_row), (c0 + at) / kUnit, e);
#pragma unroll
		for (uint32_t i = 0; i < kUnit; ++i) s.w.put(at + i, w_row, c0 + at + i < w.cols ? e[i] : 0.f);
#pragma unroll 4
		for (uint32_t row = threadIdx.x / kColumns; row < kRows; row += kMatmulThreads / kColumns) {
			const float* x = in(row);
			s.x.put(own_c, row, x && c0 + own_c < w.cols ? x[c0 + own_c] : 0.f);
		}
		__syncthreads(); // before the columns are read
#pragma unroll 2
		for (uint32_t c = 0; c < kColumns; ++c) {
			float wr[kTileRows / kAcross], xr[kRows / kAcross];
			s.w.rows(c, tx, wr);
			s.x.rows(c, ty, xr);
#pragma unroll
			for (uint32_t i = 0; i < kRows / kAcross; ++i)
#pragma unroll
				for (uint32_t j = 0; j < kTileRows / kAcross; ++j) sum[i][j] += xr[i] * wr[j];
		}
		__syncthreads(); // before the next columns are brought
	}
}

// Computes and stores the sums of a tile. out(i): the row of out for row i of the tile; negative: none.
template <uint32_t kRows, class In, class Out>
__device__ inline void multiply_tile(const MatmulArgs& a, In in, Out out) {
	__shared__ TileShared<kRows> s;
	const uint32_t first_r = blockIdx.x * kTileRows;
	const auto each = [&](auto f) { // f(row of out, weight row, i, j)
#pragma unroll
		for (uint32_t i = 0; i < kRows / kAcross; ++i) {
			const int64_t t = out(tile_row(threadIdx.x / kAcross, i));
#pragma unroll
			for (uint32_t j = 0; j < kTileRows / kAcross; ++j)
				if (const uint32_t r = first_r + tile_row(threadIdx.x % kAcross, j); t >= 0 && r < a.rows)
					f(uint32_t(t), r, i, j);
		}
	};
	TileSums<kRows> sum;
	if (gated(a)) { // sums with the second weight wait in `out`, where the same thread reads them
		tile_sums<kRows>(a, a.w[1], first_r, s, sum, in);
		each([&](uint32_t t, uint32_t r, uint32_t i, uint32_t j) { a.out[uint64_t(t) * a.rows + r] = sum[i][j]; });
	}
	tile_sums<kRows>(a, a.w[0], first_r, s, sum, in);
	each([&](uint32_t t, uint32_t r, uint32_t i, uint32_t j) {
		put(a, t, r, sum[i][j], gated(a) ? a.out[uint64_t(t) * a.rows + r] : 0.f);
	});
}

template <uint32_t kRows> __device__ inline void matmul_tile(const MatmulArgs& a) {
	const uint32_t first = blockIdx.y * kRows;
	multiply_tile<kRows>(
	    a, [&](uint32_t i) { return first + i < a.tokens ? a.x + uint64_t(first + i) * a.w[0].cols : nullptr; },
	    [&](uint32_t i) { return first + i < a.tokens ? int64_t(first + i) : int64_t(-1); });
}
// Grid: weight rows in x, 128 per block; rows of x in y, kWideTile or kTile per block.
__global__ void __launch_bounds__(kMatmulThreads, 2) matmul_wide_kernel(MatmulArgs a) { matmul_tile<kWideTile>(a); }
__global__ void __launch_bounds__(kMatmulThreads, 2) matmul_kernel(MatmulArgs a) { matmul_tile<kTile>(a); }

// Grid: weight rows of an expert in x, 128 per block; tiles of slots in y.
static_assert(KV_EXPERT_TILE == kTile);
__global__ void __launch_bounds__(kMatmulThreads, 2) expert_matmul_kernel(ExpertMatmulArgs e) {
	const uint32_t *tile = e.list + uint64_t(blockIdx.y) * KV_TILE_WORDS, *slots = tile + 1;
	if (*slots == KV_NO_SLOT) return; // the whole block returns
	const MatmulArgs a = of_expert(e.m, *tile);
	multiply_tile<kTile>(
	    a,
	    [&](uint32_t i) { return slots[i] == KV_NO_SLOT ? nullptr : a.x + uint64_t(slots[i] / e.share) * a.w[0].cols; },
	    [&](uint32_t i) { return slots[i] == KV_NO_SLOT ? int64_t(-1) : int64_t(slots[i]); });
}

void add_matmul(Kernels& k) {
	k.matvec = {{KV_KERNEL(matvec, MatmulArgs)}};
	k.matvec_row = {{KV_KERNEL(matvec_row, MatmulArgs)}};
	k.matmul = {{KV_KERNEL(matmul, MatmulArgs)}};
	k.matmul_wide = {{KV_KERNEL(matmul_wide, MatmulArgs)}};
	k.expert_matvec = {{KV_KERNEL(expert_matvec, ExpertMatmulArgs)}};
	k.expert_matvec_row = {{KV_KERNEL(expert_matvec_row, ExpertMatmulArgs)}};
	k.expert_matmul = {{KV_KERNEL(expert_matmul, ExpertMatmulArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
