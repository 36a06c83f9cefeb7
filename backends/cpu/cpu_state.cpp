// Recurrent layers: short convolution, entries of blocks, gated delta rule, scans of state spaces.
#include "backends/cpu/cpu_backend.h"

namespace kvrun {

// softmax_j(gates[j][c] + w[j][c]) . x[j][c], of rows j < taps from x and gates on
static float pooled(const float* x, const float* gates, const float* w, uint32_t taps, uint32_t channels) {
	double most = -INFINITY, shares = 0, sum = 0;
	for (uint32_t j = 0; j < taps; ++j)
		most = std::max(most, double(gates[size_t(j) * channels]) + double(w[size_t(j) * channels]));
	for (uint32_t j = 0; j < taps; ++j) {
		const size_t at = size_t(j) * channels;
		const double share = std::exp(double(gates[at]) + double(w[at]) - most);
		shares += share, sum += share * double(x[at]);
	}
	return float(sum / shares);
}

void CpuBackend::compute(const op::ShortConv& o) {
	const uint32_t channels = o.channels(), taps = o.taps(), before = taps - 1, words = o.state_words();
	const uint32_t parts = o.how.gates ? 2 : 1, own = words / parts; // of the state: of x, then of gates
	const uint32_t* work = data<uint32_t>(o.rows.work);
	const float *x = data<float>(o.x), *w = data<float>(o.w), *from = data<float>(o.rows.from),
	            *bias = o.how.bias ? data<float>(o.how.bias) : nullptr;
	float *out = data<float>(o.out), *to = data<float>(o.rows.to);
	const float* inputs[] = {x, o.how.gates ? data<float>(o.how.gates) : nullptr};
	std::vector<float> seen[2]; // the state, then the item's rows
	for (uint32_t i = 0; i < o.rows.work.shape[0]; ++i) {
		const StateWork s = work_item<StateWork>(work, i);
		KV_ASSERT(uint64_t(s.row) + s.n <= o.x.shape[0] && uint64_t(s.to) + words <= o.rows.to.elements());
		KV_ASSERT(s.from == STATE_ZERO || uint64_t(s.from) + words <= o.rows.from.elements());
		for (uint32_t i = 0; i < parts; ++i) {
			seen[i].assign(size_t(before + s.n) * channels, 0);
			if (s.from != STATE_ZERO) std::copy_n(from + s.from + size_t(i) * own, own, seen[i].begin());
			std::copy_n(inputs[i] + size_t(s.row) * channels, size_t(s.n) * channels, seen[i].begin() + own);
		}
		for (uint32_t t = 0; t < s.n; ++t)
			for (uint32_t c = 0; c < channels; ++c) {
				const size_t at = size_t(t) * channels + c;
				float& y = out[size_t(s.row) * channels + at];
				for (uint32_t i = 0; i < o.how.mixes; ++i) {
					const float before = seen[0][at], now = seen[0][at + channels];
					(&y)[size_t(i) * o.x.elements()] = now + w[size_t(i) * channels + c] * (before - now);
				}
				if (o.how.mixes) continue;
				if (o.how.gates) {
					y = pooled(&seen[0][at], &seen[1][at], w + c, taps, channels);
					continue;
				}
				float sum = 0;
				for (uint32_t j = 0; j < taps; ++j) sum += w[size_t(c) * taps + j] * seen[0][at + size_t(j) * channels];
				if (bias) sum += bias[c];
				if (o.how.silu) sum = float(double(sum) / (1 + std::exp(-double(sum))));
				y = sum;
			}
		for (uint32_t i = 0; i < parts; ++i) std::copy_n(seen[i].end() - own, own, to + s.to + size_t(i) * own);
	}
}

namespace {

struct Pool { // sums of rows with shares; a sum of 0: of none
	float most = 0, shares = 0, pooled = 0;
	void add(float gate, float x) {
		if (shares == 0) {
			*this = {gate, 1, x};
			return;
		}
		const float now = std::max(most, gate), keep = std::exp(most - now), share = std::exp(gate - now);
		*this = {now, shares * keep + share, pooled * keep + share * x};
	}
};
float mean_of(const Pool& before, const Pool& own) {
	if (before.shares == 0) return own.pooled / own.shares;
	const float most = std::max(before.most, own.most), a = std::exp(before.most - most), b = std::exp(own.most - most);
	return (before.pooled * a + own.pooled * b) / (before.shares * a + own.shares * b);
}

} // namespace

void CpuBackend::compute(const op::PoolBlocks& o) {
	const uint32_t dim = o.dim(), width = uint32_t(o.x.row_elements()), block = o.places.shape[0];
	const bool overlaps = o.overlaps();
	const uint32_t words = o.state_words(dim, overlaps), second = width - dim; // channel of the block's own set
	const uint32_t* work = data<uint32_t>(o.rows.work);
	const float *x = data<float>(o.x), *gates = data<float>(o.gates), *places = data<float>(o.places),
	            *from = data<float>(o.rows.from);
	float *out = data<float>(o.out), *to = data<float>(o.rows.to);
	for (uint32_t i = 0; i < o.rows.work.shape[0]; ++i) {
		const StateWork s = work_item<StateWork>(work, i);
		KV_ASSERT(uint64_t(s.row) + s.n <= o.x.shape[0] && uint64_t(s.to) + words <= o.rows.to.elements());
		KV_ASSERT(s.from == STATE_ZERO || uint64_t(s.from) + words <= o.rows.from.elements());
		for (uint32_t c = 0; c < dim; ++c) {
			const auto state = [&](uint32_t word) { return s.from == STATE_ZERO ? 0 : from[s.from + word * dim + c]; };
			const auto pool = [&](uint32_t i) { return Pool{state(1 + 3 * i), state(2 + 3 * i), state(3 + 3 * i)}; };
			uint32_t place = uint32_t(state(0));
			Pool own = pool(0), before, next; // next: of the first set
			if (overlaps) before = pool(1), next = pool(2);
			for (uint32_t t = s.row; t < s.row + s.n; ++t) {
				const auto add = [&](Pool& p, uint32_t channel) {
					const size_t at = size_t(t) * width + channel;
					p.add(gates[at] + places[size_t(place) * width + channel], x[at]);
				};
				add(own, second + c);
				if (overlaps) add(next, c);
				out[size_t(t) * dim + c] = mean_of(before, own);
				if (++place < block) continue;
				place = 0, own = {};
				if (overlaps) before = std::exchange(next, {});
			}
			const auto put = [&](uint32_t i, const Pool& p) {
				const float values[] = {p.most, p.shares, p.pooled};
				for (uint32_t j = 0; j < 3; ++j) to[s.to + (1 + 3 * i + j) * dim + c] = values[j];
			};
			to[s.to + c] = float(place);
			put(0, own);
			if (overlaps) put(1, before), put(2, next);
		}
	}
}

// Copies the state of an item to where the next one goes, and is computed in place.
static void begin_state(const StateRows& rows, const StateWork& item, uint32_t words, uint32_t n_rows,
                        const float* from, float* to) {
	KV_ASSERT(uint64_t(item.row) + item.n <= n_rows && uint64_t(item.to) + words <= rows.to.elements());
	KV_ASSERT(item.from == STATE_ZERO || uint64_t(item.from) + words <= rows.from.elements());
	if (item.from == STATE_ZERO)
		std::fill_n(to + item.to, words, 0.f);
	else
		std::memmove(to + item.to, from + item.from, size_t(words) * 4);
}

void CpuBackend::compute(const op::DeltaRule& o) {
	const uint32_t heads = o.out.shape[1], v_dim = o.out.shape[2], k_dim = o.how.k_dim, words = o.state_words();
	const uint32_t n_key = o.how.n_key_heads;
	if (o.gates.removal) return compute_removal(o);
	const uint32_t* work = data<uint32_t>(o.rows.work);
	const float *x = data<float>(o.x), *beta = data<float>(o.gates.beta), *alpha = data<float>(o.gates.alpha),
	            *rate = data<float>(o.gates.rate), *shift = data<float>(o.gates.shift),
	            *from = data<float>(o.rows.from);
	float *out = data<float>(o.out), *to = data<float>(o.rows.to);
	const op::DeltaPlaces at = o.places();
	const uint32_t decays = o.how.by_channel ? k_dim : 1; // of a head
	std::vector<float> held(v_dim);                       // k . S, then the change of each column
	std::vector<float> kept(decays);
	for (uint32_t i = 0; i < o.rows.work.shape[0]; ++i) {
		const StateWork item = work_item<StateWork>(work, i);
		begin_state(o.rows, item, words, o.x.shape[0], from, to);
		for (uint32_t t = item.row; t < item.row + item.n; ++t)
			for (uint32_t h = 0; h < heads; ++h) {
				float* S = to + item.to + size_t(h) * k_dim * v_dim;
				const uint32_t kh = o.how.tiled ? h % n_key : h / (heads / n_key);
				const float *q = x + size_t(t) * at.key_stride + size_t(kh) * k_dim, *k = q + at.k,
				            *v = x + at.v + size_t(t) * at.value_stride + size_t(h) * v_dim;
				const float share = 1 / (1 + std::exp(-beta[size_t(t) * heads + h]));
				for (uint32_t i = 0; i < decays; ++i) {
					const size_t of = size_t(h) * decays + i;
					const double v = double(alpha[size_t(t) * heads * decays + of]) + double(shift[of]),
					             r = double(rate[h]);
					const double power =
					    o.how.bound < 0 ? double(o.how.bound) / (1 + std::exp(-r * v)) : r * softplus(v);
					kept[i] = float(std::exp(power));
				}
				const float of_k = 1 / std::sqrt(dot(k, k, k_dim) + o.how.eps);
				const float of_q = 1 / std::sqrt((dot(q, q, k_dim) + o.how.eps) * float(k_dim));
				std::ranges::fill(held, 0.f);
				for (uint32_t r = 0; r < k_dim; ++r)
					for (uint32_t c = 0; c < v_dim; ++c) {
						S[size_t(r) * v_dim + c] *= kept[o.how.by_channel ? r : 0];
						held[c] += k[r] * of_k * S[size_t(r) * v_dim + c];
					}
				for (uint32_t c = 0; c < v_dim; ++c) held[c] = share * (v[c] - held[c]);
				float* y = out + (size_t(t) * heads + h) * v_dim;
				std::fill_n(y, v_dim, 0.f);
				for (uint32_t r = 0; r < k_dim; ++r)
					for (uint32_t c = 0; c < v_dim; ++c) {
						S[size_t(r) * v_dim + c] += k[r] * of_k * held[c];
						y[c] += q[r] * of_q * S[size_t(r) * v_dim + c];
					}
			}
	}
}

void CpuBackend::compute_removal(const op::DeltaRule& o) {
	const uint32_t heads = o.out.shape[1], v_dim = o.out.shape[2], k_dim = o.how.k_dim, words = o.state_words();
	const uint32_t* work = data<uint32_t>(o.rows.work);
	const float *x = data<float>(o.x), *beta = data<float>(o.gates.beta), *alpha = data<float>(o.gates.alpha),
	            *rate = data<float>(o.gates.rate), *shift = data<float>(o.gates.shift),
	            *removal = data<float>(o.gates.removal), *taken = data<float>(o.gates.taken),
	            *bonus = data<float>(o.gates.bonus), *from = data<float>(o.rows.from);
	float *out = data<float>(o.out), *own = data<float>(o.own), *to = data<float>(o.rows.to);
	const op::DeltaPlaces at = o.places();
	std::vector<float> removed(k_dim), share(k_dim), kept(k_dim), written(k_dim), held(v_dim);
	for (uint32_t i = 0; i < o.rows.work.shape[0]; ++i) {
		const StateWork item = work_item<StateWork>(work, i);
		begin_state(o.rows, item, words, o.x.shape[0], from, to);
		for (uint32_t t = item.row; t < item.row + item.n; ++t)
			for (uint32_t h = 0; h < heads; ++h) {
				float* S = to + item.to + size_t(h) * k_dim * v_dim;
				const float *q = x + size_t(t) * at.key_stride + size_t(h) * k_dim, *k = q + at.k,
				            *v = x + at.v + size_t(t) * at.value_stride + size_t(h) * v_dim;
				double weight = 0; // of the row's own value
				for (uint32_t r = 0; r < k_dim; ++r) {
					const size_t of = size_t(h) * k_dim + r, gate = size_t(t) * heads * k_dim + of;
					const double a = double(alpha[gate]) + double(shift[of]), of_head = double(rate[h]);
					const double power =
					    o.how.bound < 0 ? double(o.how.bound) / (1 + std::exp(-of_head * a)) : of_head * softplus(a);
					kept[r] = float(std::exp(power));
					share[r] = 1 / (1 + std::exp(-beta[gate]));
					removed[r] = k[r] * removal[of];
					written[r] = k[r] * (1 + (share[r] - 1) * taken[of]);
					weight += double(q[r]) * double(written[r]) * double(bonus[of]);
				}
				const float length = std::max(std::sqrt(dot(removed.data(), removed.data(), k_dim)), o.how.eps);
				std::ranges::fill(held, 0.f);
				for (uint32_t r = 0; r < k_dim; ++r) {
					removed[r] /= length;
					for (uint32_t c = 0; c < v_dim; ++c) held[c] += removed[r] * S[size_t(r) * v_dim + c];
				}
				const size_t row = (size_t(t) * heads + h) * v_dim;
				std::fill_n(out + row, v_dim, 0.f);
				for (uint32_t r = 0; r < k_dim; ++r)
					for (uint32_t c = 0; c < v_dim; ++c) {
						float& s = S[size_t(r) * v_dim + c];
						s = kept[r] * s - share[r] * removed[r] * held[c] + written[r] * v[c];
						out[row + c] += q[r] * s;
					}
				for (uint32_t c = 0; c < v_dim; ++c) own[row + c] = float(weight) * v[c];
			}
	}
}

void CpuBackend::compute(const op::SsmScan& o) {
	const uint32_t heads = o.out.shape[1], v_dim = o.out.shape[2], k_dim = o.how.k_dim, words = o.state_words();
	const uint32_t groups = o.how.n_groups, channels = uint32_t(o.x.row_elements());
	const uint32_t* work = data<uint32_t>(o.rows.work);
	const float *x = data<float>(o.x), *steps = data<float>(o.gates.step), *rate = data<float>(o.gates.rate),
	            *shift = data<float>(o.gates.shift), *skip = data<float>(o.gates.skip),
	            *from = data<float>(o.rows.from);
	float *out = data<float>(o.out), *to = data<float>(o.rows.to);
	for (uint32_t i = 0; i < o.rows.work.shape[0]; ++i) {
		const StateWork item = work_item<StateWork>(work, i);
		begin_state(o.rows, item, words, o.x.shape[0], from, to);
		for (uint32_t t = item.row; t < item.row + item.n; ++t)
			for (uint32_t h = 0; h < heads; ++h) {
				float* S = to + item.to + size_t(h) * k_dim * v_dim;
				const float* row = x + size_t(t) * channels;
				const float *v = row + size_t(h) * v_dim,
				            *b = row + size_t(heads) * v_dim + size_t(h / (heads / groups)) * k_dim,
				            *c = b + size_t(groups) * k_dim;
				const double step = softplus(double(steps[size_t(t) * heads + h]) + double(shift[h]));
				const float decay = float(std::exp(double(rate[h]) * step));
				float* y = out + (size_t(t) * heads + h) * v_dim;
				for (uint32_t j = 0; j < v_dim; ++j) y[j] = skip[h] * v[j];
				for (uint32_t r = 0; r < k_dim; ++r)
					for (uint32_t j = 0; j < v_dim; ++j) {
						float& s = S[size_t(r) * v_dim + j];
						s = decay * s + b[r] * (float(step) * v[j]);
						y[j] += c[r] * s;
					}
			}
	}
}

void CpuBackend::compute(const op::SelectiveScan& o) {
	const uint32_t channels = o.out.shape[1], k_dim = o.k_dim(), words = o.state_words();
	const uint32_t* work = data<uint32_t>(o.rows.work);
	const float *x = data<float>(o.x), *steps = data<float>(o.gates.step), *b = data<float>(o.gates.b),
	            *c = data<float>(o.gates.c), *rate = data<float>(o.gates.rate), *shift = data<float>(o.gates.shift),
	            *skip = data<float>(o.gates.skip), *from = data<float>(o.rows.from);
	float *out = data<float>(o.out), *to = data<float>(o.rows.to);
	for (uint32_t i = 0; i < o.rows.work.shape[0]; ++i) {
		const StateWork item = work_item<StateWork>(work, i);
		begin_state(o.rows, item, words, o.x.shape[0], from, to);
		float* S = to + item.to;
		for (uint32_t t = item.row; t < item.row + item.n; ++t)
			for (uint32_t j = 0; j < channels; ++j) {
				const size_t at = size_t(t) * channels + j;
				const double step = softplus(double(steps[at]) + double(shift[j]));
				float sum = skip[j] * x[at];
				for (uint32_t k = 0; k < k_dim; ++k) {
					float& s = S[size_t(k) * channels + j];
					s = float(std::exp(double(rate[size_t(j) * k_dim + k]) * step)) * s +
					    b[size_t(t) * k_dim + k] * (float(step) * x[at]);
					sum += c[size_t(t) * k_dim + k] * s;
				}
				out[at] = sum;
			}
	}
}

} // namespace kvrun
