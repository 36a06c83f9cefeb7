// index_score, index_pick, index_live: which tokens a row attends to.
#include "backends/cuda/device.cuh"
#include "backends/cuda/kernels.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

// ---- index_score. A thread multiplies 4 queries by 4 keys of a tile. The queries of a tile are `span` heads, a power
// of 2, of each row: of many rows one head at a time, so that threads exchange nothing, of a decode row all heads.
// Either way a sum takes the heads in order, so that a row's bits do not depend on the rows beside it.

constexpr uint32_t kKeys = 64, kKeyLanes = kKeys / 4,
                   kQueryLanes = kThreads / kKeyLanes;         // lanes that share a query, a key
constexpr uint32_t kTileQueries = kQueryLanes * 4, kStep = 64; // of a tile, channels of it
constexpr uint32_t kStride = kTileQueries + 1;                 // so that threads write to different banks
static_assert(kTileQueries == kIndexRows && kKeys * kTileQueries <= kStep * kStride);

// Four channels of a key of f16 in words.
struct FourHalves {
	uint32_t low, high;
	__device__ float4 floats() const { return {low_half(low), high_half(low), low_half(high), high_half(high)}; }
};

// Grid: work items in x, kIndexRows rows of them in y. The keys stay in shared memory for all queries, which pass
// through it, kStep channels at a time. With `pool` a score is the largest product of several keys.
template <uint32_t most_dim> __device__ inline void index_score(const IndexScoreArgs& a) {
	__shared__ Shared<uint4, kKeys * most_dim / 8> keys; // 8 halves each, by piece
	__shared__ Shared<float, kStep * kStride> tile;      // quads of channels, by quad; then products, by query
	const uint32_t* words = a.work + uint64_t(blockIdx.x) * INDEX_WORDS;
	const IndexWork w = {words[0], words[1], words[2], words[3], words[4], {}};
	const uint32_t begin = blockIdx.y * kTileQueries;
	if (begin >= w.n_rows) return;
	const uint32_t lane = threadIdx.x, key_lane = lane % kKeyLanes, query_lane = lane / kKeyLanes;
	const uint32_t left = w.n_rows - begin, n_rows = left < kTileQueries ? left : kTileQueries, pieces = a.dim / 8;
	const uint64_t row0 = uint64_t(w.row) + begin;
	const uint4* from = reinterpret_cast<const uint4*>(a.keys + w.words);
	uint32_t shift = 0;
	while (1u << shift < a.n_heads && n_rows << (shift + 1) <= kTileQueries) ++shift;
	const uint32_t span = 1u << shift;
	float largest = 0; // of a score of more keys than kKeys, so far
	for (uint32_t first = 0; first < w.n; first += kKeys) {
		__syncthreads(); // before keys are overwritten
		for (uint32_t i = lane; i < pieces * kKeys; i += kThreads) {
			const uint32_t b = i / pieces, piece = i % pieces;
			const uint4 zero = {0, 0, 0, 0};
			keys[piece * kKeys + b] = first + b < w.n ? from[uint64_t(first + b) * pieces + piece] : zero;
		}
		float sum[4][4] = {}; // of 4 keys; one head: of 4 rows, else of up to 2
		for (uint32_t head = 0; head < a.n_heads; head += span) {
			float dots[4][4] = {};
			for (uint32_t c = 0; c < a.dim; c += kStep) {
				__syncthreads(); // before the tile is overwritten
				for (uint32_t i = lane; i < kTileQueries * (kStep / 4); i += kThreads) {
					const uint32_t query = i / (kStep / 4), quad = i % (kStep / 4);
					const uint32_t r = query >> shift, h = head + (query & (span - 1));
					float4 x = {0, 0, 0, 0};
					if (r < n_rows && h < a.n_heads && c + quad * 4 < a.dim)
						x = reinterpret_cast<const float4*>(a.q + ((row0 + r) * a.n_heads + h) * a.dim + c)[quad];
					tile.set_quad((quad * kStride + query) * 4, x);
				}
				__syncthreads(); // before queries are read
				const uint32_t channels = a.dim - c < kStep ? a.dim - c : kStep;
				const uint32_t step_pieces = query_lane < n_rows * span ? channels / 8 : 0; // 0: no row's queries
				for (uint32_t piece = 0; piece < step_pieces; ++piece) {
					float4 k[2][4];
#pragma unroll
					for (uint32_t j = 0; j < 4; ++j) {
						const uint4 x = keys[(c / 8 + piece) * kKeys + key_lane + j * kKeyLanes];
						k[0][j] = FourHalves{x.x, x.y}.floats(), k[1][j] = FourHalves{x.z, x.w}.floats();
					}
#pragma unroll
					for (uint32_t part = 0; part < 2; ++part)
#pragma unroll
						for (uint32_t i = 0; i < 4; ++i) {
							const uint32_t query = query_lane + i * kQueryLanes;
							const float4 x = tile.quad(((piece * 2 + part) * kStride + query) * 4);
#pragma unroll
							for (uint32_t j = 0; j < 4; ++j) {
								const float4 y = k[part][j];
								dots[i][j] = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, dots[i][j]))));
							}
						}
				}
			}
#pragma unroll
			for (uint32_t i = 0; i < 4; ++i) {
				const uint32_t query = query_lane + i * kQueryLanes, r = query >> shift,
				               h = head + (query & (span - 1));
				const bool weighed = a.weights && r < n_rows && h < a.n_heads;
				const float weight = weighed ? a.weights[(row0 + r) * a.n_heads + h] : 1.f;
#pragma unroll
				for (uint32_t j = 0; j < 4; ++j) dots[i][j] = a.pool ? dots[i][j] : fmaxf(dots[i][j], 0.f) * weight;
			}
			if (shift == 0) {
#pragma unroll
				for (uint32_t i = 0; i < 4; ++i)
#pragma unroll
					for (uint32_t j = 0; j < 4; ++j) sum[i][j] += dots[i][j];
				continue;
			}
			__syncthreads(); // before products replace queries
#pragma unroll
			for (uint32_t i = 0; i < 4; ++i)
				tile.set_quad((i * kThreads + lane) * 4, {dots[i][0], dots[i][1], dots[i][2], dots[i][3]});
			__syncthreads(); // before products are read
#pragma unroll
			for (uint32_t i = 0; i < 2; ++i) {
				const uint32_t r = query_lane + i * kQueryLanes;
				for (uint32_t h = 0; r < n_rows && h < span; ++h) {
					const float4 x = tile.quad(((r * span + h) * kKeyLanes + key_lane) * 4);
					sum[i][0] += x.x, sum[i][1] += x.y, sum[i][2] += x.z, sum[i][3] += x.w;
				}
			}
		}
		if (a.pool) {
			__syncthreads(); // before products of a block's keys replace queries
#pragma unroll
			for (uint32_t i = 0; i < 4; ++i)
				tile.set_quad((i * kThreads + lane) * 4, {sum[i][0], sum[i][1], sum[i][2], sum[i][3]});
			__syncthreads(); // before a block's products are read
			const uint32_t of_tile = a.pool < kKeys ? a.pool : kKeys, scores = kKeys / of_tile;
			for (uint32_t o = lane; o < n_rows * scores; o += kThreads) { // once, where `largest` is read
				const uint32_t r = o / scores, at = o % scores * of_tile;
				const auto product = [&](uint32_t k) {
					return tile[(r * kKeyLanes + k % kKeyLanes) * 4 + k / kKeyLanes];
				};
				largest = first % a.pool == 0 ? product(at) : largest;
				for (uint32_t k = at; k < at + of_tile; ++k) largest = fmaxf(largest, product(k));
				if ((first + at + of_tile) % a.pool == 0 && first + at < w.n)
					a.score[(row0 + r) * a.capacity + w.key + (first + at) / a.pool] = largest;
			}
			continue;
		}
#pragma unroll
		for (uint32_t i = 0; i < 4; ++i) {
			const uint32_t r = query_lane + i * kQueryLanes;
#pragma unroll
			for (uint32_t j = 0; j < 4; ++j) {
				const uint32_t b = first + key_lane + j * kKeyLanes;
				if (r < n_rows && b < w.n) a.score[(row0 + r) * a.capacity + w.key + b] = sum[i][j];
			}
		}
	}
}
// Blocks at once on a multiprocessor: without them ptxas saves registers for more, and spills for some chips.
__global__ void __launch_bounds__(kThreads, 4) index_score_kernel(IndexScoreArgs a) { index_score<kNarrowKey>(a); }
__global__ void __launch_bounds__(kThreads, 3) index_score_wide_kernel(IndexScoreArgs a) { index_score<256>(a); }

// ---- index_pick

constexpr uint32_t kPickWarps = kPickThreads / kWarp, kDigits = 3; // of 2 bits, but for 0

__device__ inline uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }
__device__ inline uint32_t most(uint32_t a, uint32_t b) { return a < b ? b : a; }
// The lowest n bits, n at most 32.
__device__ inline uint32_t low_bits(uint32_t n) { return n == 0 ? 0 : 0xffffffffu >> (32 - n); }
// Bits of tokens first .. end - 1 in a word.
__device__ inline uint32_t tail(uint32_t word, uint32_t first, uint32_t end) {
	const auto inside = [&](uint32_t token) { return token < word * 32 ? 0 : least(token - word * 32, 32u); };
	return low_bits(inside(end)) & ~low_bits(inside(first));
}

// Grid: a block per row. The score of the last chosen block is found 2 bits at a time: each digit is the largest one
// that enough blocks reach. Then threads count the equal ones among their words, so that each knows how many come
// before its own.
__global__ void __launch_bounds__(kPickThreads) index_pick_kernel(IndexPickArgs a) {
	__shared__ Shared<uint32_t, 2 * kDigits * kPickWarps> counts; // by pass % 2, digit, warp
	__shared__ Shared<uint32_t, kPickThreads> ties;
	const uint32_t t = threadIdx.x, warp = t / kWarp, row = blockIdx.x;
	const float* score = a.score + uint64_t(row) * a.capacity;
	uint32_t* bits = a.bits + uint64_t(row) * a.n_words;
	const uint32_t seen = a.seen[row], begun = a.local ? (seen + a.block - 1) / a.block : seen / a.block;
	const uint32_t n = begun - least(begun, a.local), rest = n * a.block; // tokens from `rest` on are read
	// A thread's share is a number of units: words with whole blocks, or a block of several words.
	const uint32_t per_unit = most(32 / a.block, 1u), words = most(a.block / 32, 1u);
	const uint32_t n_units = (n + per_unit - 1) / per_unit, share = (n_units + kPickThreads - 1) / kPickThreads;
	const uint32_t begin = least(t * share, n_units), end = least(begin + share, n_units);
	// Blocks above the bound are chosen, and of those that equal it the first.
	uint32_t bound = 0, wanted = 0, before = 0;
	if (n > a.most) {
		uint32_t above = 0; // blocks above the digits found so far
		for (uint32_t pass = 0; pass < 16; ++pass) {
			const uint32_t unit = 0x40000000u >> 2 * pass, at = pass % 2 * kDigits;
			uint32_t reach[kDigits] = {}; // blocks that reach bound + unit, + 2 units, + 3 units
			for (uint32_t i = t; i < n; i += kPickThreads) {
				const uint32_t x = float_order(score[i]);
				reach[0] += x >= bound + unit, reach[1] += x >= bound + 2 * unit, reach[2] += x >= bound + 3 * unit;
			}
#pragma unroll
			for (uint32_t d = 0; d < kDigits; ++d) {
				const uint32_t sum = warp_sum(reach[d]);
				if (t % kWarp == 0) counts[(at + d) * kPickWarps + warp] = sum;
			}
			__syncthreads(); // before counts are read
			uint32_t digit = 0;
#pragma unroll
			for (uint32_t d = 0; d < kDigits; ++d) {
				uint32_t all = 0;
				for (uint32_t i = 0; i < kPickWarps; ++i) all += counts[(at + d) * kPickWarps + i];
				if (all >= a.most)
					digit = d + 1;
				else if (digit == d)
					above = all;
			}
			bound += digit * unit;
		}
		wanted = a.most - above;
		uint32_t own = 0;
		for (uint32_t i = begin * per_unit; i < end * per_unit && i < n; ++i) own += float_order(score[i]) == bound;
		ties[t] = own;
		__syncthreads(); // before ties of other threads are read
		for (uint32_t i = 0; i < t; ++i) before += ties[i];
	}
	for (uint32_t unit = begin; unit < end; ++unit) {
		uint32_t of_unit = 0;
		for (uint32_t i = 0; i < per_unit && unit * per_unit + i < n; ++i) {
			const uint32_t x = float_order(score[unit * per_unit + i]);
			const bool tie = bound && x == bound;
			if (x > bound || (tie && before < wanted)) of_unit |= low_bits(least(a.block, 32u)) << i * a.block;
			before += tie;
		}
		for (uint32_t word = unit * words; word < unit * words + words; ++word)
			bits[word] = of_unit | tail(word, rest, seen);
	}
	for (uint32_t word = n_units * words + t; word < a.n_words; word += kPickThreads)
		bits[word] = tail(word, rest, seen);
}

// Grid: work items in x; blocks in y share the words of an item, a thread each.
__global__ void index_live_kernel(IndexLiveArgs a) {
	const uint32_t* words = a.work + uint64_t(blockIdx.x) * LIVE_WORDS;
	const LiveWork w = {words[0], words[1], words[2], words[3], words[4], words[5], words[6], 0};
	const uint32_t* bits = a.bits + uint64_t(w.row) * a.n_words;
	const auto row_word = [&](uint32_t i) { return i < a.n_words ? bits[i] : 0; };
	const uint32_t *live = a.tables + w.live, *positions = a.tables + w.position;
	for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < w.n_pages * 4; i += gridDim.y * blockDim.x) {
		const uint32_t page = i / 4, token = i % 4 * 32;
		uint32_t kept = token < w.page ? live[i] : 0;
		if (w.position == LIVE_IN_ORDER) {
			kept &= row_word((w.first + page * w.page + token) / 32);
		} else if (kept) {
			for (uint32_t t = 0; t < 32; ++t) {
				const uint32_t at = positions[uint64_t(page) * LIVE_POSITIONS + token + t];
				kept &= ~((~(row_word(at / 32) >> at % 32) & 1u) << t);
			}
		}
		a.tables[w.to + i] = kept;
	}
}

void add_index(Kernels& k) {
	k.index_score = {{KV_KERNEL(index_score, IndexScoreArgs)}};
	k.index_score_wide = {{KV_KERNEL(index_score_wide, IndexScoreArgs)}};
	k.index_pick = {{KV_KERNEL(index_pick, IndexPickArgs)}};
	k.index_live = {{KV_KERNEL(index_live, IndexLiveArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
