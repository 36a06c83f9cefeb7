// Recurrent layers: short convolution, gated delta rule and scans against sums in double; the bits do not depend on how
// a sequence is cut.
#include "shared/work.h"
#include "tests/device/sequences_of_rows.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/rig.h"
#include <cmath>
#include <doctest/doctest.h>
#include <fmt/ranges.h>

using namespace kvrun;

namespace {

// A pool with a state for each sequence; those of even sequences are replaced in place.
struct Pool {
	Pool(Rig& rig, const Sequences& rows, uint32_t words, Random& random) : words(words) {
		constexpr uint32_t kGap = 5; // words between states, which must not change
		Floats from, to;
		Words items;
		uint32_t row = 0;
		for (size_t i = 0; i < rows.size(); ++i) {
			const uint32_t at = uint32_t(from.size()) + kGap;
			const Floats more = random.normals(kGap + words);
			from.insert(from.end(), more.begin(), more.end());
			before.emplace_back(more.begin() + kGap, more.end());
			if (i % 2) before.back().assign(words, 0);
			items.insert(items.end(), {row, rows[i], i % 2 ? STATE_ZERO : at, at});
			row += rows[i];
		}
		memory = from;
		n = uint32_t(from.size());
		view = rig.f32(from, n);
		work = rig.u32(items, uint32_t(rows.size()), STATE_WORDS);
	}
	StateRows rows() const { return {work, view, view}; }
	// The pool's contents when sequence i has states[i].
	Floats with(const std::vector<Floats>& states) const {
		Floats r = memory;
		for (size_t i = 0; i < states.size(); ++i)
			std::copy(states[i].begin(), states[i].end(), r.begin() + ptrdiff_t((i + 1) * (n / states.size()) - words));
		return r;
	}

	uint32_t words, n = 0;
	View view, work;
	std::vector<Floats> before;
	Floats memory;
};

struct ConvRow {
	Sequences rows;
	uint32_t channels, taps;
	bool bias = false, silu = true;
	bool gates = false;
	uint32_t mixes = 0;
	std::string text() const {
		return fmt::format("short_conv: T {} channels {} taps {}{}{}", fmt::join(rows, "+"), channels, taps,
		                   bias ? " bias" : "",
		                   mixes   ? fmt::format(" mixes {}", mixes)
		                   : gates ? " gates"
		                   : silu  ? ""
		                           : " linear");
	}
};

struct DeltaRow {
	Sequences rows;
	uint32_t heads, key_heads, k_dim, v_dim;
	bool tiled;
	bool by_channel = false, apart = false;
	float bound = 0;
	bool removal = false;
	uint32_t betas() const { return removal ? heads * k_dim : heads; }     // of a token
	uint32_t decays() const { return by_channel ? heads * k_dim : heads; } // of a token
	std::string text() const {
		return fmt::format("delta_rule: T {} heads {}:{} states {} x {}{}{}{}{}{}", fmt::join(rows, "+"), heads,
		                   key_heads, k_dim, v_dim, tiled ? " tiled" : "", by_channel ? " by channel" : "",
		                   bound < 0 ? " bounded" : "", apart ? " apart" : "", removal ? " removal" : "");
	}
};

struct ScanRow {
	Sequences rows;
	uint32_t heads, groups, k_dim, v_dim;
	uint32_t channels() const { return 2 * groups * k_dim + heads * v_dim; }
	std::string text() const {
		return fmt::format("ssm_scan: T {} heads {} groups {} states {} x {}", fmt::join(rows, "+"), heads, groups,
		                   k_dim, v_dim);
	}
};

const std::vector<ConvRow> kConvRows = {{{1}, 64, 4},
                                        {{7}, 200, 4},
                                        {{1, 1, 1}, 72, 2},
                                        {{5, 1, 66}, 96, 3},
                                        {{2, 1}, 1000, 8},
                                        {{130}, 33, 4},
                                        {{4, 1}, 72, 3, false, false},
                                        {{3, 66}, 40, 4, true},
                                        {{1}, 96, 2, true, false},
                                        {{3, 1, 24}, 128, 10},
                                        {{1, 20}, 65, 16, true},
                                        {{1, 3}, 65, 4, false, false, true},
                                        {{41, 6, 18}, 128, 4, false, false, true},
                                        {{1}, 64, 2, false, false, false, 6},
                                        {{41, 1, 2}, 33, 2, false, false, false, 5},
                                        {{3, 17}, 130, 2, false, false, false, 1}};
const std::vector<DeltaRow> kDeltaRows = {{{1}, 4, 2, 128, 128, false},
                                          {{1, 1, 1}, 6, 2, 64, 64, true},
                                          {{40}, 4, 4, 16, 24, false},
                                          {{9, 2}, 4, 2, 8, 8, true},
                                          {{3, 1, 20}, 6, 3, 128, 40, false},
                                          {{2}, 2, 1, 256, 72, true},
                                          {{70, 3}, 2, 1, 24, 33, true},
                                          {{66}, 1, 1, 32, 128, false},
                                          {{1}, 2, 2, 128, 128, false, true, true},
                                          {{9, 1, 3}, 3, 3, 16, 24, false, true, true},
                                          {{40}, 4, 2, 24, 33, true, true},
                                          {{2, 5}, 2, 1, 256, 8, false, true},
                                          {{3, 66}, 4, 2, 8, 16, true, false, true},
                                          {{1, 1}, 2, 2, 128, 128, false, true, true, -5},
                                          {{40, 3}, 4, 2, 24, 33, true, true, false, -0.5f},
                                          {{1, 1}, 2, 2, 64, 64, false, true, true, -0.6f, true},
                                          {{40, 3}, 3, 3, 24, 33, false, true, true, 0, true},
                                          {{9, 70}, 1, 1, 128, 40, false, true, true, -0.6f, true},
                                          {{5}, 4, 4, 8, 8, false, true, true, -0.6f, true}};

const std::vector<ScanRow> kScanRows = {{{1}, 4, 1, 128, 64},    {{1, 1, 1}, 6, 2, 64, 64},   {{40}, 4, 4, 16, 24},
                                        {{9, 2}, 4, 2, 8, 8},    {{3, 1, 20}, 6, 3, 128, 80}, {{2}, 2, 1, 256, 72},
                                        {{70, 3}, 3, 1, 24, 33}, {{66}, 1, 1, 32, 128}};

struct SelectiveRow {
	Sequences rows;
	uint32_t channels, k_dim;
	std::string text() const {
		return fmt::format("selective_scan: T {} channels {} states of {}", fmt::join(rows, "+"), channels, k_dim);
	}
};
const std::vector<SelectiveRow> kSelectiveRows = {{{1}, 64, 16},       {{1, 1, 1}, 200, 16}, {{40}, 33, 8},
                                                  {{3, 1, 20}, 72, 4}, {{9, 2}, 130, 32},    {{66}, 1, 16}};

constexpr float kEps = 1e-2f; // large, so that it has an effect

struct DeltaInput {
	DeltaInput(const DeltaRow& d, Random& random) {
		const uint32_t T = sum(d.rows), channels = 2 * d.key_heads * d.k_dim + d.heads * d.v_dim;
		x = random.normals(size_t(T) * channels, 0.5f);
		beta = random.normals(size_t(T) * d.betas(), 2), alpha = random.normals(size_t(T) * d.decays(), 3);
		shift = random.normals(d.decays());
		for (uint32_t h = 0; h < d.heads; ++h) rate.push_back(-random.uniform(0.02f, 1));
		const float extremes[] = {-100, 100, -30, 30}; // of gates, whose exp() may not be finite
		for (size_t i = 0; i < 4 && i < beta.size(); ++i) beta[i] = extremes[i], alpha[i] = extremes[3 - i];
		if (!d.removal) return;
		for (Floats* v : {&removal, &taken, &bonus}) *v = random.normals(d.decays(), 0.7f);
		// the first key is zero: its length is at least eps
		for (uint32_t i = 0; i < d.heads * d.k_dim; ++i) x[d.heads * d.k_dim + i] = 0;
	}
	// own: as out, of d.removal.
	void enqueue(Backend& b, Rig& rig, const DeltaRow& d, const View& out, const View& vx, uint32_t first, uint32_t n,
	             const StateRows& rows, const View& own = {}) const {
		const auto part = [&](const Floats& all, uint32_t each) {
			return rig.f32({all.begin() + ptrdiff_t(first * each), all.begin() + ptrdiff_t((first + n) * each)}, n,
			               each);
		};
		const auto factors = [&](const Floats& v) { return v.empty() ? View() : rig.f32(v, d.decays()); };
		b.delta_rule(kvrun::rows(out, first, n), kvrun::rows(vx, first, n),
		             {part(beta, d.betas()), part(alpha, d.decays()), rig.f32(rate, d.heads),
		              rig.f32(shift, d.decays()), factors(removal), factors(taken), factors(bonus)},
		             rows, {d.key_heads, d.k_dim, d.tiled, kEps, d.by_channel, d.apart, d.bound},
		             own ? kvrun::rows(own, first, n) : View());
	}
	// x with queries, keys and values of all rows one behind the other.
	Floats apart(const DeltaRow& d) const {
		const uint32_t keys = d.key_heads * d.k_dim, values = d.heads * d.v_dim;
		Floats all;
		for (const auto& [at, width] : {std::pair{0u, keys}, {keys, keys}, {2 * keys, values}})
			for (size_t row = 0; row < x.size(); row += 2 * keys + values)
				all.insert(all.end(), x.begin() + ptrdiff_t(row + at), x.begin() + ptrdiff_t(row + at + width));
		return all;
	}
	Floats x, beta, alpha, rate, shift;
	Floats removal, taken, bonus; // of d.removal
};

// One sequence, in double; `state` becomes the state after its rows. own: gets op::DeltaRule::own.
std::vector<double> delta_reference(const DeltaRow& d, const DeltaInput& in, uint32_t first, uint32_t n, Floats& state,
                                    Floats& own) {
	const uint32_t K = d.k_dim, V = d.v_dim, channels = 2 * d.key_heads * K + d.heads * V;
	std::vector<double> S(state.begin(), state.end()), out;
	for (uint32_t t = first; t < first + n; ++t)
		for (uint32_t h = 0; h < d.heads; ++h) {
			const uint32_t kh = d.tiled ? h % d.key_heads : h / (d.heads / d.key_heads);
			const float* row = &in.x[size_t(t) * channels];
			std::vector<double> q(row + kh * K, row + (kh + 1) * K),
			    k(row + (d.key_heads + kh) * K, row + (d.key_heads + kh + 1) * K);
			for (std::vector<double>* v : {&q, &k}) {
				if (d.removal) break;
				double squares = double(kEps);
				for (const double e : *v) squares += e * e;
				for (double& e : *v) e /= std::sqrt(squares);
			}
			std::vector<double> decay; // of each row of the state
			for (uint32_t r = 0; r < K; ++r) {
				const size_t of = d.by_channel ? h * K + r : h;
				const double a = double(in.alpha[size_t(t) * d.decays() + of]) + double(in.shift[of]);
				const double rate = double(in.rate[h]), power = d.bound < 0
				                                                    ? double(d.bound) / (1 + std::exp(-rate * a))
				                                                    : rate * (a > 40 ? a : std::log1p(std::exp(a)));
				decay.push_back(std::exp(power));
			}
			const auto share = [&](size_t i) {
				return 1 / (1 + std::exp(-double(in.beta[size_t(t) * d.betas() + i])));
			};
			std::vector<double> removed, rates; // of d.removal
			double squares = 0, weight = 0;
			for (uint32_t r = 0; r < K && d.removal; ++r) {
				const size_t i = h * K + r;
				rates.push_back(share(i)), removed.push_back(k[r] * double(in.removal[i]));
				squares += removed[r] * removed[r];
				k[r] *= 1 + (rates[r] - 1) * double(in.taken[i]);
				weight += q[r] * k[r] * double(in.bonus[i]);
			}
			for (double& r : removed) r /= std::max(std::sqrt(squares), double(kEps));
			const double beta = share(h);
			for (uint32_t c = 0; c < V; ++c) {
				double held = 0, y = 0;
				const auto at = [&](uint32_t r) -> double& { return S[(size_t(h) * K + r) * V + c]; };
				const double value = double(row[2 * d.key_heads * K + h * V + c]);
				if (d.removal) {
					for (uint32_t r = 0; r < K; ++r) held += removed[r] * at(r);
					for (uint32_t r = 0; r < K; ++r)
						y += q[r] * (at(r) = decay[r] * at(r) - rates[r] * removed[r] * held + k[r] * value);
					out.push_back(y), own.push_back(float(weight * value));
					continue;
				}
				for (uint32_t r = 0; r < K; ++r) held += k[r] * (at(r) *= decay[r]);
				const double delta = beta * (value - held);
				for (uint32_t r = 0; r < K; ++r) y += q[r] / std::sqrt(double(K)) * (at(r) += k[r] * delta);
				out.push_back(y);
			}
		}
	state.assign(S.begin(), S.end());
	return out;
}

struct ScanInput {
	ScanInput(const ScanRow& d, Random& random) {
		const uint32_t T = sum(d.rows);
		x = random.normals(size_t(T) * d.channels(), 0.5f), step = random.normals(size_t(T) * d.heads, 3);
		shift = random.normals(d.heads), skip = random.normals(d.heads);
		for (uint32_t h = 0; h < d.heads; ++h) rate.push_back(-random.uniform(0.02f, 1));
		const float extremes[] = {-100, 50, -30, 30};
		for (size_t i = 0; i < 4 && i < step.size(); ++i) step[i] = extremes[i];
	}
	void enqueue(Backend& b, Rig& rig, const ScanRow& d, const View& out, const View& vx, uint32_t first, uint32_t n,
	             const StateRows& rows) const {
		const View part = rig.f32(
		    {step.begin() + ptrdiff_t(first * d.heads), step.begin() + ptrdiff_t((first + n) * d.heads)}, n, d.heads);
		b.ssm_scan(kvrun::rows(out, first, n), kvrun::rows(vx, first, n),
		           {part, rig.f32(rate, d.heads), rig.f32(shift, d.heads), rig.f32(skip, d.heads)}, rows,
		           {d.groups, d.k_dim});
	}
	Floats x, step, rate, shift, skip;
};

std::vector<double> scan_reference(const ScanRow& d, const ScanInput& in, uint32_t first, uint32_t n, Floats& state) {
	std::vector<double> S(state.begin(), state.end()), out;
	for (uint32_t t = first; t < first + n; ++t)
		for (uint32_t h = 0; h < d.heads; ++h) {
			const float *row = &in.x[size_t(t) * d.channels()],
			            *b = row + d.heads * d.v_dim + h / (d.heads / d.groups) * d.k_dim, *c = b + d.groups * d.k_dim;
			const double a = double(in.step[size_t(t) * d.heads + h]) + double(in.shift[h]);
			const double step = a > 40 ? a : std::log1p(std::exp(a)), decay = std::exp(double(in.rate[h]) * step);
			for (uint32_t j = 0; j < d.v_dim; ++j) {
				const double v = double(row[h * d.v_dim + j]);
				double y = double(in.skip[h]) * v;
				for (uint32_t r = 0; r < d.k_dim; ++r) {
					double& s = S[(size_t(h) * d.k_dim + r) * d.v_dim + j];
					s = decay * s + double(b[r]) * step * v;
					y += double(c[r]) * s;
				}
				out.push_back(y);
			}
		}
	state.assign(S.begin(), S.end());
	return out;
}

struct SelectiveInput {
	SelectiveInput(const SelectiveRow& d, Random& random) {
		const uint32_t T = sum(d.rows);
		x = random.normals(size_t(T) * d.channels, 0.5f), step = random.normals(size_t(T) * d.channels, 3);
		b = random.normals(size_t(T) * d.k_dim), c = random.normals(size_t(T) * d.k_dim);
		shift = random.normals(d.channels), skip = random.normals(d.channels);
		for (uint32_t i = 0; i < d.channels * d.k_dim; ++i) rate.push_back(-random.uniform(0.02f, 1));
		const float extremes[] = {-100, 50, -30, 30};
		for (size_t i = 0; i < 4 && i < step.size(); ++i) step[i] = extremes[i];
	}
	void enqueue(Backend& backend, Rig& rig, const SelectiveRow& d, const View& out, const View& vx, uint32_t first,
	             uint32_t n, const StateRows& rows) const {
		const auto part = [&](const Floats& all, uint32_t each) {
			return rig.f32({all.begin() + ptrdiff_t(first * each), all.begin() + ptrdiff_t((first + n) * each)}, n,
			               each);
		};
		backend.selective_scan(kvrun::rows(out, first, n), kvrun::rows(vx, first, n),
		                       {part(step, d.channels), part(b, d.k_dim), part(c, d.k_dim),
		                        rig.f32(rate, d.channels, d.k_dim), rig.f32(shift, d.channels),
		                        rig.f32(skip, d.channels)},
		                       rows);
	}
	Floats x, step, b, c, rate, shift, skip;
};

std::vector<double> selective_reference(const SelectiveRow& d, const SelectiveInput& in, uint32_t first, uint32_t n,
                                        Floats& state) {
	std::vector<double> S(state.begin(), state.end()), out;
	for (uint32_t t = first; t < first + n; ++t)
		for (uint32_t j = 0; j < d.channels; ++j) {
			const size_t at = size_t(t) * d.channels + j;
			const double a = double(in.step[at]) + double(in.shift[j]), x = double(in.x[at]);
			const double step = a > 40 ? a : std::log1p(std::exp(a));
			double y = double(in.skip[j]) * x;
			for (uint32_t k = 0; k < d.k_dim; ++k) {
				double& s = S[size_t(k) * d.channels + j];
				s = std::exp(double(in.rate[size_t(j) * d.k_dim + k]) * step) * s +
				    double(in.b[size_t(t) * d.k_dim + k]) * step * x;
				y += double(in.c[size_t(t) * d.k_dim + k]) * s;
			}
			out.push_back(y);
		}
	state.assign(S.begin(), S.end());
	return out;
}

// A scan of sequences, held against its reference, and in pieces, which give the same bits.
template <class Row, class In, class Reference, class Output>
void check_scan(Rig& rig, Backend& backend, const Row& d, const TestRow& row, const In& in, Reference reference,
                Output output, const View& vx, uint32_t words, const char* what) {
	Random of_states(77);
	Pool pool(rig, d.rows, words, of_states);
	std::vector<Floats> states = pool.before;
	Floats want;
	uint32_t first = 0;
	for (size_t i = 0; i < d.rows.size(); first += d.rows[i++]) {
		const std::vector<double> y = reference(d, in, first, d.rows[i], states[i]);
		want.insert(want.end(), y.begin(), y.end());
	}
	const View out = output();
	in.enqueue(backend, rig, d, out, vx, 0, sum(d.rows), pool.rows());
	const Floats got = rig.get(out), after = rig.get(pool.view);
	check_close(row, got, want, what);
	check_close(row, after, pool.with(states), what);
	for (const uint32_t piece : {1u, 7u, 64u}) {
		Random same(77);
		Pool pool2(rig, d.rows, words, same);
		const View again = output();
		const Words items = rig.get_words(pool2.work);
		first = 0;
		for (size_t i = 0; i < d.rows.size(); first += d.rows[i++])
			for (uint32_t t = 0; t < d.rows[i]; t += piece) {
				const uint32_t n = std::min(piece, d.rows[i] - t), to = items[i * STATE_WORDS + 3];
				pool2.work = rig.u32({0, n, t ? to : items[i * STATE_WORDS + 2], to}, 1, STATE_WORDS);
				in.enqueue(backend, rig, d, again, vx, first + t, n, pool2.rows());
			}
		const TestRow cut{row.device, row.number, fmt::format("{}, {} rows at a time", row.text, piece)};
		check_same_bits(cut, rig.get(again), got);
		check_same_bits(cut, rig.get(pool2.view), after);
	}
}

} // namespace

TEST_CASE("ops: ssm_scan, also in pieces with the same bits") {
	each_row(kScanRows, [](Backend& backend, const ScanRow& d, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const ScanInput in(d, random);
		const auto output = [&] { return rig.out(sum(d.rows), d.heads, d.v_dim); };
		check_scan(rig, backend, d, row, in, scan_reference, output, rig.f32(in.x, sum(d.rows), d.channels()),
		           d.heads * d.k_dim * d.v_dim, "ssm_scan");
	});
}

TEST_CASE("ops: selective_scan, also in pieces with the same bits") {
	each_row(kSelectiveRows, [](Backend& backend, const SelectiveRow& d, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const SelectiveInput in(d, random);
		const auto output = [&] { return rig.out(sum(d.rows), d.channels); };
		check_scan(rig, backend, d, row, in, selective_reference, output, rig.f32(in.x, sum(d.rows), d.channels),
		           d.k_dim * d.channels, "selective_scan");
	});
}

TEST_CASE("ops: short_conv") {
	each_row(kConvRows, [](Backend& backend, const ConvRow& c, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t T = sum(c.rows), before = c.taps - 1;
		const uint32_t n_weights = c.mixes ? c.mixes : c.taps, n_out = std::max(c.mixes, 1u) * T;
		const Floats x = random.normals(size_t(T) * c.channels), w = random.normals(size_t(c.channels) * n_weights),
		             bias = random.normals(c.channels);
		Floats gates = random.normals(x.size(), 3.f);
		for (size_t i = 0; i < gates.size(); i += 11) gates[i] = i % 2 ? 100 : -100; // exp() of some is not finite
		Random same = random;
		const uint32_t words = before * c.channels * (c.gates ? 2 : 1);
		Pool pool(rig, c.rows, words, random), apart(rig, c.rows, words, same);
		std::vector<Floats> states;
		Floats want(c.mixes ? size_t(n_out) * c.channels : 0);
		size_t at = 0;
		for (size_t i = 0; i < c.rows.size(); ++i) {
			const auto own = pool.before[i].begin() + ptrdiff_t(before * c.channels); // the end of the state of x
			Floats seen(pool.before[i].begin(), own), gated(own, pool.before[i].end());
			const ptrdiff_t from = ptrdiff_t(at), end = ptrdiff_t(at + c.rows[i] * c.channels);
			seen.insert(seen.end(), x.begin() + from, x.begin() + end);
			gated.insert(gated.end(), gates.begin() + from, gates.begin() + end);
			at += c.rows[i] * c.channels;
			const size_t first = at / c.channels - c.rows[i];
			for (uint32_t t = 0; t < c.rows[i]; ++t)
				for (uint32_t ch = 0; ch < c.channels; ++ch) {
					for (uint32_t m = 0; m < c.mixes; ++m) {
						const double old = double(seen[t * c.channels + ch]),
						             now = double(seen[(t + 1) * c.channels + ch]);
						want[(size_t(m) * T + first + t) * c.channels + ch] =
						    float(now + double(w[m * c.channels + ch]) * (old - now));
					}
					if (c.mixes) continue;
					double v = 0, shares = 0;
					for (uint32_t j = 0; c.gates && j < c.taps; ++j) {
						const size_t in = (t + j) * c.channels + ch;
						const double share = std::exp(double(gated[in]) + double(w[j * c.channels + ch]) - 100);
						v += share * double(seen[in]), shares += share;
					}
					if (c.gates) {
						want.push_back(float(v / shares));
						continue;
					}
					for (uint32_t j = 0; j < c.taps; ++j)
						v += double(w[ch * c.taps + j]) * double(seen[(t + j) * c.channels + ch]);
					if (c.bias) v += double(bias[ch]);
					want.push_back(float(c.silu ? v / (1 + std::exp(-v)) : v));
				}
			states.emplace_back(seen.end() - ptrdiff_t(before * c.channels), seen.end());
			if (c.gates) states[i].insert(states[i].end(), gated.end() - ptrdiff_t(before * c.channels), gated.end());
		}
		const View out = rig.out(n_out, c.channels), vx = rig.f32(x, T, c.channels);
		const View vw = c.gates || c.mixes ? rig.f32(w, n_weights, c.channels) : rig.f32(w, c.channels, c.taps);
		const ConvArgs how{c.bias ? rig.f32(bias, c.channels) : View(), c.silu,
		                   c.gates ? rig.f32(gates, T, c.channels) : View(), c.mixes};
		backend.short_conv(out, vx, vw, pool.rows(), how);
		check_close(row, rig.get(out), want, "short_conv");
		check_same_bits(row, rig.get(pool.view), pool.with(states));
		check_same_bits(row, rig.get(vx), x);
		// States that go to other memory: a sequence's rows may then pass in any order.
		constexpr uint32_t kFurther = 3;
		Words items = rig.get_words(apart.work);
		for (size_t i = 3; i < items.size(); i += STATE_WORDS) items[i] += kFurther;
		const View out2 = rig.out(n_out, c.channels), to = rig.f32(Floats(apart.n + kFurther, 0), apart.n + kFurther);
		backend.short_conv(out2, vx, vw, {rig.u32(items, uint32_t(c.rows.size()), STATE_WORDS), apart.view, to}, how);
		check_same_bits(row, rig.get(out2), rig.get(out));
		const Floats moved = rig.get(to);
		for (size_t i = 0; i < states.size(); ++i) {
			const auto begin = moved.begin() + items[i * STATE_WORDS + 3];
			check_same_bits(row, Floats(begin, begin + pool.words), states[i]);
		}
	});
}

TEST_CASE("ops: delta_rule") {
	each_row(kDeltaRows, [](Backend& backend, const DeltaRow& d, const TestRow& row) {
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t T = sum(d.rows), channels = 2 * d.key_heads * d.k_dim + d.heads * d.v_dim;
		const DeltaInput in(d, random);
		Pool pool(rig, d.rows, d.heads * d.k_dim * d.v_dim, random);
		std::vector<Floats> states = pool.before;
		Floats want, want_own;
		uint32_t first = 0;
		for (size_t i = 0; i < d.rows.size(); first += d.rows[i++]) {
			const std::vector<double> y = delta_reference(d, in, first, d.rows[i], states[i], want_own);
			want.insert(want.end(), y.begin(), y.end());
		}
		const View out = rig.out(T, d.heads, d.v_dim), vx = rig.f32(d.apart ? in.apart(d) : in.x, T, channels);
		const View own = d.removal ? rig.out(T, d.heads, d.v_dim) : View();
		in.enqueue(backend, rig, d, out, vx, 0, T, pool.rows(), own);
		check_close(row, rig.get(out), want, "delta_rule");
		if (own) check_close(row, rig.get(own), want_own, "delta_rule");
		check_close(row, rig.get(pool.view), pool.with(states), "delta_rule");
	});
}

TEST_CASE("ops: a sequence through short_conv and delta_rule has the same bits in any pieces, beside others or alone") {
	each_row(kDeltaRows, [](Backend& backend, DeltaRow d, const TestRow& row) {
		d.apart = false; // rows of the convolution's output
		Random random(uint32_t(row.number) + 1);
		Rig rig(backend);
		const uint32_t T = sum(d.rows), channels = 2 * d.key_heads * d.k_dim + d.heads * d.v_dim, taps = 4;
		const DeltaInput in(d, random);
		const Floats w = random.normals(size_t(channels) * taps);
		const View weights = rig.f32(w, channels, taps), x = rig.f32(in.x, T, channels),
		           own = rig.out(T, d.heads, d.v_dim);
		const auto run = [&](const View& mixed, const View& out, const Pool& conv, const Pool& delta, uint32_t first,
		                     uint32_t n) {
			backend.short_conv(kvrun::rows(mixed, first, n), kvrun::rows(x, first, n), weights, conv.rows(), {});
			in.enqueue(backend, rig, d, out, mixed, first, n, delta.rows(), d.removal ? own : View());
		};
		Random of_states(77);
		const View mixed = rig.out(T, channels), out = rig.out(T, d.heads, d.v_dim);
		const Pool conv(rig, d.rows, (taps - 1) * channels, of_states),
		    delta(rig, d.rows, d.heads * d.k_dim * d.v_dim, of_states);
		run(mixed, out, conv, delta, 0, T);
		const Floats want = rig.get(out), conv_states = rig.get(conv.view), delta_states = rig.get(delta.view);
		for (const uint32_t piece : {1u, 7u, 64u}) {
			const View mixed2 = rig.out(T, channels), out2 = rig.out(T, d.heads, d.v_dim);
			Random same(77);
			Pool conv2(rig, d.rows, (taps - 1) * channels, same),
			    delta2(rig, d.rows, d.heads * d.k_dim * d.v_dim, same);
			const Words conv_items = rig.get_words(conv2.work), delta_items = rig.get_words(delta2.work);
			uint32_t first = 0;
			for (size_t i = 0; i < d.rows.size(); first += d.rows[i++])
				for (uint32_t t = 0; t < d.rows[i]; t += piece) {
					const uint32_t n = std::min(piece, d.rows[i] - t);
					const auto item = [&](const Words& items) { // later pieces continue where the first one wrote
						const uint32_t to = items[i * STATE_WORDS + 3], from = t ? to : items[i * STATE_WORDS + 2];
						return rig.u32({0, n, from, to}, 1, STATE_WORDS);
					};
					conv2.work = item(conv_items), delta2.work = item(delta_items);
					run(mixed2, out2, conv2, delta2, first + t, n);
				}
			const TestRow cut{row.device, row.number, fmt::format("{}, {} rows at a time", row.text, piece)};
			check_same_bits(cut, rig.get(out2), want);
			check_same_bits(cut, rig.get(conv2.view), conv_states);
			check_same_bits(cut, rig.get(delta2.view), delta_states);
		}
	});
}
