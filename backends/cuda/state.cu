// short_conv, pool_blocks, delta_rule, ssm_scan, selective_scan: defined in the shaders of these names.
#include "backends/cuda/device.cuh"
#include "backends/cuda/kernels.h"

namespace kvrun::cuda::KV_CUDA_BUILD {

// Rows first .. end - 1 of n, whose gates weigh them.
__device__ inline void pool_rows(const ShortConvArgs& a, uint32_t c, uint32_t row, uint32_t first, uint32_t end,
                                 uint32_t n, uint32_t from, uint32_t to) {
	const uint64_t gates_from = uint64_t(a.taps - 1) * a.channels;
	float seen[kMostTaps] = {}, gate[kMostTaps] = {}; // of the current row, last, and of those before
	for (uint32_t j = 1; j < a.taps; ++j)
		if (first + j >= a.taps) {
			const uint64_t at = uint64_t(row + first + j - a.taps) * a.channels + c;
			seen[j] = a.x[at], gate[j] = a.gates[at];
		} else if (from != STATE_ZERO) {
			const uint64_t at = from + uint64_t(first + j - 1) * a.channels + c;
			seen[j] = a.rows.from[at], gate[j] = a.rows.from[at + gates_from];
		}
	for (uint32_t t = row + first; t < row + end; ++t) {
		const uint64_t at = uint64_t(t) * a.channels + c;
		for (uint32_t j = 0; j + 1 < a.taps; ++j) seen[j] = seen[j + 1], gate[j] = gate[j + 1];
		seen[a.taps - 1] = a.x[at], gate[a.taps - 1] = a.gates[at];
		float most = gate[0] + a.w[c], shares = 0, sum = 0;
		for (uint32_t j = 1; j < a.taps; ++j) most = fmaxf(most, gate[j] + a.w[j * a.channels + c]);
		for (uint32_t j = 0; j < a.taps; ++j) {
			const float share = expf(gate[j] + a.w[j * a.channels + c] - most);
			shares += share, sum += share * seen[j];
		}
		a.out[at] = sum / shares;
	}
	for (uint32_t j = 1; j < a.taps && end == n; ++j) {
		const uint64_t at = to + uint64_t(j - 1) * a.channels + c;
		a.rows.to[at] = seen[j], a.rows.to[at + gates_from] = gate[j];
	}
}

// Grid: channels in x, items in y, blocks of kConvTile rows in z.
__global__ void short_conv_kernel(ShortConvArgs a) {
	const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
	if (c >= a.channels) return;
	const uint32_t* item = a.rows.work + blockIdx.y * STATE_WORDS;
	const uint32_t row = item[0], n = item[1], from = item[2], to = item[3];
	const bool whole = from == to;
	const uint32_t first = blockIdx.z * kConvTile, end = whole || n - first < kConvTile ? n : first + kConvTile;
	if (first > 0 && (whole || first >= n)) return;
	if (a.gates) return pool_rows(a, c, row, first, end, n, from, to);
	float seen[kMostTaps] = {}; // x of the current row, last, and of those before
	for (uint32_t j = 1; j < a.taps; ++j)
		if (first + j >= a.taps)
			seen[j] = a.x[uint64_t(row + first + j - a.taps) * a.channels + c];
		else if (from != STATE_ZERO)
			seen[j] = a.rows.from[from + uint64_t(first + j - 1) * a.channels + c];
	for (uint32_t t = row + first; t < row + end; ++t) {
		if (a.mixes) {
			seen[0] = seen[1], seen[1] = a.x[uint64_t(t) * a.channels + c];
			for (uint32_t i = 0; i < a.mixes; ++i)
				a.out[(uint64_t(i) * a.n_rows + t) * a.channels + c] =
				    seen[1] + a.w[uint64_t(i) * a.channels + c] * (seen[0] - seen[1]);
			continue;
		}
		float sum = 0;
		for (uint32_t j = 0; j + 1 < a.taps; ++j) {
			seen[j] = seen[j + 1];
			sum += a.w[c * a.taps + j] * seen[j];
		}
		seen[a.taps - 1] = a.x[uint64_t(t) * a.channels + c];
		sum += a.w[c * a.taps + a.taps - 1] * seen[a.taps - 1];
		if (a.bias) sum += a.bias[c];
		a.out[uint64_t(t) * a.channels + c] = a.silu ? sum / (1 + expf(-sum)) : sum;
	}
	for (uint32_t j = 1; j < a.taps && end == n; ++j) a.rows.to[to + uint64_t(j - 1) * a.channels + c] = seen[j];
}

struct Pool { // sums of rows with shares; a sum of 0: of none
	float most, shares, pooled;
};
__device__ inline Pool pool_with(const Pool& p, float gate, float x) {
	if (p.shares == 0) return {gate, 1, x};
	const float now = fmaxf(p.most, gate), keep = expf(p.most - now), share = expf(gate - now);
	return {now, p.shares * keep + share, p.pooled * keep + share * x};
}
__device__ inline float mean_of(const Pool& before, const Pool& own) {
	if (before.shares == 0) return own.pooled / own.shares;
	const float most = fmaxf(before.most, own.most), a = expf(before.most - most), b = expf(own.most - most);
	return (before.pooled * a + own.pooled * b) / (before.shares * a + own.shares * b);
}

// Grid: channels in x, items in y.
__global__ void pool_blocks_kernel(PoolBlocksArgs a) {
	const uint32_t c = blockIdx.x * blockDim.x + threadIdx.x;
	if (c >= a.dim) return;
	const uint32_t* item = a.rows.work + blockIdx.y * STATE_WORDS;
	const uint32_t row = item[0], n = item[1], from = item[2], to = item[3];
	const bool overlaps = a.width != a.dim, zero = from == STATE_ZERO;
	const auto state = [&](uint32_t word) { return zero ? 0.f : a.rows.from[from + uint64_t(word) * a.dim + c]; };
	const auto pool = [&](uint32_t i) { return Pool{state(1 + 3 * i), state(2 + 3 * i), state(3 + 3 * i)}; };
	const Pool none{0, 0, 0};
	uint32_t place = uint32_t(state(0));
	Pool own = pool(0), before = overlaps ? pool(1) : none, next = overlaps ? pool(2) : none;
	for (uint32_t t = row; t < row + n; ++t) {
		const uint64_t at = uint64_t(t) * a.width + c, of = uint64_t(place) * a.width + c, second = a.width - a.dim;
		own = pool_with(own, a.gates[at + second] + a.places[of + second], a.x[at + second]);
		if (overlaps) next = pool_with(next, a.gates[at] + a.places[of], a.x[at]);
		a.out[uint64_t(t) * a.dim + c] = mean_of(before, own);
		if (++place < a.block) continue;
		place = 0, own = none;
		if (overlaps) before = next, next = none;
	}
	const auto put = [&](uint32_t i, const Pool& p) {
		float* const at = a.rows.to + to + uint64_t(1 + 3 * i) * a.dim + c;
		at[0] = p.most, at[a.dim] = p.shares, at[uint64_t(2) * a.dim] = p.pooled;
	};
	a.rows.to[to + c] = float(place);
	put(0, own);
	if (overlaps) put(1, before), put(2, next);
}

// Where a thread's part of a head's state lies, as in shaders/lib/state_rows.glsl: neighbours share kLaneColumns
// columns, and each has every slices-th quad of their rows; rows behind k_dim are zero.
struct StateLane {
	__device__ StateLane(uint32_t k_dim, uint32_t v_dim)
	    : k_dim(k_dim), v_dim(v_dim), slices(blockDim.x / (kStateColumns / kLaneColumns)), keys(slices * kStateRows),
	      slice(threadIdx.x % slices), column(threadIdx.x / slices * kLaneColumns),
	      col(blockIdx.x * kStateColumns + column) {}
	__device__ uint32_t row(uint32_t i) const { return (i / 4 * slices + slice) * 4 + i % 4; } // its i-th one
	__device__ bool has(uint32_t i, uint32_t c) const { return row(i) < k_dim && col + c < v_dim; }
	__device__ uint64_t word(uint32_t i, uint32_t c) const {
		return (uint64_t(blockIdx.y) * k_dim + row(i)) * v_dim + col + c;
	}
	uint32_t k_dim, v_dim, slices, keys, slice, column, col;
};

__device__ inline void load_state(float s[kStateRows][kLaneColumns], const StatePlaces& rows, uint32_t from,
                                  const StateLane& lane) {
	for (uint32_t i = 0; i < kStateRows; ++i)
		for (uint32_t c = 0; c < kLaneColumns; ++c)
			s[i][c] = from != STATE_ZERO && lane.has(i, c) ? rows.from[from + lane.word(i, c)] : 0.f;
}
__device__ inline void store_state(const float s[kStateRows][kLaneColumns], const StatePlaces& rows, uint32_t to,
                                   const StateLane& lane) {
	for (uint32_t i = 0; i < kStateRows; ++i)
		for (uint32_t c = 0; c < kLaneColumns; ++c)
			if (lane.has(i, c)) rows.to[to + lane.word(i, c)] = s[i][c];
}
// Values of n tokens, a stride apart from x on, of the block's columns.
__device__ inline void load_values(Shared<float, kStateTile * kStateColumns>& value, const float* x, uint64_t stride,
                                   uint32_t n, uint32_t v_dim) {
	for (uint32_t i = threadIdx.x; i < n * kStateColumns; i += blockDim.x) {
		const uint32_t col = blockIdx.x * kStateColumns + i % kStateColumns;
		value[i] = col < v_dim ? x[i / kStateColumns * stride + col] : 0.f;
	}
}
// Over neighbours, a power of two of them: pairs first, then pairs of pairs.
__device__ inline float tree_sum(float x, uint32_t parts) {
	for (uint32_t by = 1; by < parts; by *= 2) x += __shfl_xor_sync(kAllLanes, x, by);
	return x;
}
// The four sums of a thread over its quads.
__device__ inline float quad_sum(const float sums[4]) { return (sums[0] + sums[1]) + (sums[2] + sums[3]); }

// Grid: blocks of columns in x, heads in y, items in z. Sums are added in the order of delta_rule.comp.
__global__ void delta_rule_kernel(DeltaRuleArgs a) {
	constexpr uint32_t kKeys = kStateTile * kMostStateRows;
	__shared__ Shared<float, kKeys> key, query, kept; // kept: by_channel
	__shared__ Shared<float, kStateTile * kStateColumns> value;
	// decay; decay / length of k, of q; share / length of k; q . k * share
	__shared__ Shared<float, kStateTile> decays, of_keys, of_queries, change_of, own_value;
	const uint32_t thread = threadIdx.x, head = blockIdx.y;
	const StateLane lane(a.k_dim, a.v_dim);
	const uint32_t* item = a.rows.work + blockIdx.z * STATE_WORDS;
	const uint32_t row = item[0], n = item[1], from = item[2], to = item[3];
	const uint32_t key_head = a.tiled ? head % a.n_key_heads : head / (a.n_heads / a.n_key_heads);
	const uint32_t parts = blockDim.x < kWarp ? 1 : blockDim.x / kStateTile < kWarp ? blockDim.x / kStateTile : kWarp;
	float s[kStateRows][kLaneColumns];
	load_state(s, a.rows, from, lane);
	for (uint32_t tile = 0; tile < n; tile += kStateTile) {
		const uint32_t here = n - tile < kStateTile ? n - tile : kStateTile;
		__syncthreads(); // the tile before has been read
		for (uint32_t i = thread; i < here * lane.keys; i += blockDim.x) {
			const uint32_t t = row + tile + i / lane.keys, k = i % lane.keys;
			const float* x = a.x + uint64_t(t) * a.key_stride + key_head * a.k_dim;
			query[i] = k < a.k_dim ? x[k] : 0.f;
			key[i] = k < a.k_dim ? x[a.k_at + k] : 0.f;
			const uint64_t gate = uint64_t(t) * a.n_heads + head;
			if (a.by_channel) {
				const float v = k < a.k_dim ? a.alpha[gate * a.k_dim + k] + a.shift[head * a.k_dim + k] : 0.f;
				const float power = a.bound < 0 ? a.bound / (1 + expf(-a.rate[head] * v)) : a.rate[head] * softplus(v);
				kept[i] = k < a.k_dim ? expf(power) : 0.f;
			}
		}
		load_values(value, a.x + a.v_at + uint64_t(row + tile) * a.value_stride + head * a.v_dim, a.value_stride, here,
		            a.v_dim);
		__syncthreads();
		const uint32_t own = thread / parts, first = (own < here ? own : 0) * lane.keys;
		float k_k = 0, q_q = 0, q_k = 0;
		for (uint32_t i = thread % parts; i < lane.keys; i += parts) {
			const float k = key[first + i], q = query[first + i];
			k_k += k * k, q_q += q * q, q_k += q * k;
		}
		k_k = tree_sum(k_k, parts), q_q = tree_sum(q_q, parts), q_k = tree_sum(q_k, parts);
		if (own < here && thread % parts == 0) {
			const uint64_t gate = uint64_t(row + tile + own) * a.n_heads + head;
			const float decay = a.by_channel ? 1.f : expf(a.rate[head] * softplus(a.alpha[gate] + a.shift[head]));
			const float share = 1 / (1 + expf(-a.beta[gate]));
			const float of_k = 1 / sqrtf(k_k + a.eps), of_q = a.scale / sqrtf(q_q + a.eps);
			decays[own] = decay, of_keys[own] = decay * of_k, of_queries[own] = decay * of_q;
			change_of[own] = share * of_k, own_value[own] = q_k * of_k * of_q * share;
		}
		__syncthreads();
		for (uint32_t t = 0; t < here; ++t) {
			float k_s[kLaneColumns][4] = {}, q_s[kLaneColumns][4] = {}; // k . S, q . S
			for (uint32_t i = 0; i < kStateRows; ++i) {
				const uint32_t at = t * lane.keys + lane.row(i);
				const float k = key[at], q = query[at], by = a.by_channel ? kept[at] : 1.f;
				for (uint32_t c = 0; c < kLaneColumns; ++c) {
					s[i][c] *= by;
					k_s[c][i % 4] += k * s[i][c], q_s[c][i % 4] += q * s[i][c];
				}
			}
			const float decay = decays[t];
			float change[kLaneColumns];
			for (uint32_t c = 0; c < kLaneColumns; ++c) {
				const float held = tree_sum(quad_sum(k_s[c]), lane.slices),
				            read = tree_sum(quad_sum(q_s[c]), lane.slices);
				const float miss = value[t * kStateColumns + lane.column + c] - of_keys[t] * held;
				change[c] = change_of[t] * miss;
				if (lane.slice == c % lane.slices && lane.col + c < a.v_dim)
					a.out[(uint64_t(row + tile + t) * a.n_heads + head) * a.v_dim + lane.col + c] =
					    of_queries[t] * read + own_value[t] * miss;
			}
			for (uint32_t i = 0; i < kStateRows; ++i)
				for (uint32_t c = 0; c < kLaneColumns; ++c)
					s[i][c] = decay * s[i][c] + key[t * lane.keys + lane.row(i)] * change[c];
		}
	}
	store_state(s, a.rows, to, lane);
}

// The same with keys of what is forgotten (DELTA_REMOVAL in the shader).
__global__ void delta_removal_kernel(DeltaRuleArgs a) {
	constexpr uint32_t kKeys = kStateTile * kMostRemovalRows;
	__shared__ Shared<float, kKeys> key, query, kept, removed, back; // back: removed * share
	__shared__ Shared<float, kStateTile * kStateColumns> value;
	// 1 / length of removed; q . back / length, q . k, the same with the bonus
	__shared__ Shared<float, kStateTile> of_removed, of_held, of_value, of_own;
	const uint32_t thread = threadIdx.x, head = blockIdx.y;
	const StateLane lane(a.k_dim, a.v_dim);
	const uint32_t* item = a.rows.work + blockIdx.z * STATE_WORDS;
	const uint32_t row = item[0], n = item[1], from = item[2], to = item[3];
	const uint32_t parts = blockDim.x < kWarp ? 1 : blockDim.x / kStateTile < kWarp ? blockDim.x / kStateTile : kWarp;
	float s[kStateRows][kLaneColumns];
	load_state(s, a.rows, from, lane);
	for (uint32_t tile = 0; tile < n; tile += kStateTile) {
		const uint32_t here = n - tile < kStateTile ? n - tile : kStateTile;
		__syncthreads(); // the tile before has been read
		for (uint32_t i = thread; i < here * lane.keys; i += blockDim.x) {
			const uint32_t t = row + tile + i / lane.keys, k = i % lane.keys, of = head * a.k_dim + k;
			query[i] = key[i] = kept[i] = removed[i] = back[i] = 0;
			if (k >= a.k_dim) continue;
			const uint64_t gate = (uint64_t(t) * a.n_heads + head) * a.k_dim + k;
			const float* x = a.x + uint64_t(t) * a.key_stride + of;
			const float v = a.alpha[gate] + a.shift[of], share = 1 / (1 + expf(-a.beta[gate]));
			kept[i] = expf(a.bound < 0 ? a.bound / (1 + expf(-a.rate[head] * v)) : a.rate[head] * softplus(v));
			query[i] = x[0];
			removed[i] = x[a.k_at] * a.removal[of], back[i] = removed[i] * share;
			key[i] = x[a.k_at] * (1 + (share - 1) * a.taken[of]);
		}
		load_values(value, a.x + a.v_at + uint64_t(row + tile) * a.value_stride + head * a.v_dim, a.value_stride, here,
		            a.v_dim);
		__syncthreads();
		const uint32_t own = thread / parts, first = (own < here ? own : 0) * lane.keys;
		float r_r = 0, q_b = 0, q_k = 0, q_own = 0;
		for (uint32_t i = thread % parts; i < lane.keys; i += parts) {
			const float r = removed[first + i], q = query[first + i], by = q * key[first + i];
			r_r += r * r, q_b += q * back[first + i], q_k += by;
			if (i < a.k_dim) q_own += by * a.bonus[head * a.k_dim + i];
		}
		r_r = tree_sum(r_r, parts), q_b = tree_sum(q_b, parts);
		q_k = tree_sum(q_k, parts), q_own = tree_sum(q_own, parts);
		if (own < here && thread % parts == 0) {
			const float of_r = 1 / fmaxf(sqrtf(r_r), a.eps);
			of_removed[own] = of_r, of_held[own] = q_b * of_r, of_value[own] = q_k, of_own[own] = q_own;
		}
		__syncthreads();
		for (uint32_t t = 0; t < here; ++t) {
			float r_s[kLaneColumns][4] = {}, q_s[kLaneColumns][4] = {}; // removed . S, q . S
			for (uint32_t i = 0; i < kStateRows; ++i) {
				const uint32_t at = t * lane.keys + lane.row(i);
				for (uint32_t c = 0; c < kLaneColumns; ++c) {
					r_s[c][i % 4] += removed[at] * s[i][c];
					s[i][c] *= kept[at];
					q_s[c][i % 4] += query[at] * s[i][c];
				}
			}
			float v[kLaneColumns], loss[kLaneColumns];
			for (uint32_t c = 0; c < kLaneColumns; ++c) {
				const float held = of_removed[t] * tree_sum(quad_sum(r_s[c]), lane.slices),
				            read = tree_sum(quad_sum(q_s[c]), lane.slices);
				v[c] = value[t * kStateColumns + lane.column + c], loss[c] = of_removed[t] * held;
				if (lane.slice != c % lane.slices || lane.col + c >= a.v_dim) continue;
				const uint64_t at = (uint64_t(row + tile + t) * a.n_heads + head) * a.v_dim + lane.col + c;
				a.out[at] = read - of_held[t] * held + of_value[t] * v[c];
				a.own[at] = of_own[t] * v[c];
			}
			for (uint32_t i = 0; i < kStateRows; ++i) {
				const uint32_t at = t * lane.keys + lane.row(i);
				for (uint32_t c = 0; c < kLaneColumns; ++c) s[i][c] += key[at] * v[c] - back[at] * loss[c];
			}
		}
	}
	store_state(s, a.rows, to, lane);
}

// Grid: blocks of columns in x, heads in y, items in z. Sums are added in the order of ssm_scan.comp.
__global__ void ssm_scan_kernel(SsmScanArgs a) {
	constexpr uint32_t kKeys = kStateTile * kMostStateRows;
	__shared__ Shared<float, kKeys> written, read; // B, C
	__shared__ Shared<float, kStateTile * kStateColumns> value;
	__shared__ Shared<float, kStateTile> decays, spans;
	const uint32_t thread = threadIdx.x, head = blockIdx.y, group = head / (a.n_heads / a.n_groups);
	const StateLane lane(a.k_dim, a.v_dim);
	const uint32_t* item = a.rows.work + blockIdx.z * STATE_WORDS;
	const uint32_t row = item[0], n = item[1], from = item[2], to = item[3];
	float s[kStateRows][kLaneColumns];
	load_state(s, a.rows, from, lane);
	for (uint32_t tile = 0; tile < n; tile += kStateTile) {
		const uint32_t here = n - tile < kStateTile ? n - tile : kStateTile;
		__syncthreads(); // the tile before has been read
		for (uint32_t i = thread; i < here * lane.keys; i += blockDim.x) {
			const uint32_t k = i % lane.keys;
			const float* x = a.x + uint64_t(row + tile + i / lane.keys) * a.channels + a.n_heads * a.v_dim;
			written[i] = k < a.k_dim ? x[group * a.k_dim + k] : 0.f;
			read[i] = k < a.k_dim ? x[(a.n_groups + group) * a.k_dim + k] : 0.f;
		}
		load_values(value, a.x + uint64_t(row + tile) * a.channels + head * a.v_dim, a.channels, here, a.v_dim);
		if (thread < here) {
			const uint64_t gate = uint64_t(row + tile + thread) * a.n_heads + head;
			const float step = softplus(a.step[gate] + a.shift[head]);
			spans[thread] = step, decays[thread] = expf(a.rate[head] * step);
		}
		__syncthreads();
		for (uint32_t t = 0; t < here; ++t) {
			float sums[kLaneColumns][4] = {}; // C . S
			const float decay = decays[t];
			for (uint32_t i = 0; i < kStateRows; ++i) {
				const uint32_t at = t * lane.keys + lane.row(i);
				for (uint32_t c = 0; c < kLaneColumns; ++c) {
					const float change = spans[t] * value[t * kStateColumns + lane.column + c];
					s[i][c] = decay * s[i][c] + written[at] * change;
					sums[c][i % 4] += read[at] * s[i][c];
				}
			}
			for (uint32_t c = 0; c < kLaneColumns; ++c) {
				const float sum = tree_sum(quad_sum(sums[c]), lane.slices);
				if (lane.slice == c % lane.slices && lane.col + c < a.v_dim)
					a.out[(uint64_t(row + tile + t) * a.n_heads + head) * a.v_dim + lane.col + c] =
					    sum + a.skip[head] * value[t * kStateColumns + lane.column + c];
			}
		}
	}
	store_state(s, a.rows, to, lane);
}

// Grid: blocks of channels in x, items in y; a channel per thread. Sums are added in the order of selective_scan.comp.
__global__ void selective_scan_kernel(SelectiveScanArgs a) {
	const uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x;
	if (channel >= a.channels) return;
	const uint32_t* item = a.rows.work + blockIdx.y * STATE_WORDS;
	const uint32_t row = item[0], n = item[1], from = item[2], to = item[3];
	float s[kMostChannelRows], rate[kMostChannelRows];
#pragma unroll
	for (uint32_t k = 0; k < kMostChannelRows; ++k)
		if (k < a.k_dim) {
			rate[k] = a.rate[uint64_t(channel) * a.k_dim + k];
			s[k] = from == STATE_ZERO ? 0.f : a.rows.from[from + uint64_t(k) * a.channels + channel];
		}
	for (uint32_t t = row; t < row + n; ++t) {
		const uint64_t at = uint64_t(t) * a.channels + channel, keys = uint64_t(t) * a.k_dim;
		const float value = a.x[at], span = softplus(a.step[at] + a.shift[channel]), change = span * value;
		float sums[4] = {}; // c . S
#pragma unroll
		for (uint32_t k = 0; k < kMostChannelRows; ++k)
			if (k < a.k_dim) {
				s[k] = expf(rate[k] * span) * s[k] + a.b[keys + k] * change;
				sums[k % 4] += a.c[keys + k] * s[k];
			}
		a.out[at] = quad_sum(sums) + a.skip[channel] * value;
	}
#pragma unroll
	for (uint32_t k = 0; k < kMostChannelRows; ++k)
		if (k < a.k_dim) a.rows.to[to + uint64_t(k) * a.channels + channel] = s[k];
}

void add_state(Kernels& k) {
	k.short_conv = {{KV_KERNEL(short_conv, ShortConvArgs)}};
	k.pool_blocks = {{KV_KERNEL(pool_blocks, PoolBlocksArgs)}};
	k.ssm_scan = {{KV_KERNEL(ssm_scan, SsmScanArgs)}};
	k.selective_scan = {{KV_KERNEL(selective_scan, SelectiveScanArgs)}};
	k.delta_rule = {{KV_KERNEL(delta_rule, DeltaRuleArgs)}};
	k.delta_removal = {{KV_KERNEL(delta_removal, DeltaRuleArgs)}};
}

} // namespace kvrun::cuda::KV_CUDA_BUILD
