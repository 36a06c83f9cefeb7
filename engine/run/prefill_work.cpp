// How much work rows of a prompt are, and how many fit into a piece.
#include "engine/run/prefill_work.h"
#include "engine/run/session.h"
#include <algorithm>

namespace kvrun {
namespace {

// Work is estimated as the number of multiplies and adds.
constexpr double kPackWork = 40;    // per element packed into a page
constexpr uint32_t kMatmulRows = 8; // rows of a projection that cost as much as one row, as weights are read once

double mlp_work(const Config& c, const Layer& l, double n, bool cold) {
	const double dim = c.dim, rows = cold ? std::max(n, double(kMatmulRows)) : n;
	const Experts& e = l.experts;
	const double dense = l.mlp == MlpKind::None ? 0 : e.with_mlp() ? l.hidden_dim : e.shared_dim;
	const double work = rows * dim * (6 * dense + 2. * e.n + 4. * e.latent_dim + 6. * c.layer_input_dim);
	// A few rows choose different experts, and each expert costs as much as for several rows.
	const double slots = n * e.used, experts = std::min(slots, double(e.n));
	return work + 6. * e.width(c.dim) * e.hidden_dim * (cold ? std::max(slots, experts * kMatmulRows) : slots);
}

// Work of n rows in a layer's projections; cold: weights are read from memory.
double projection_work(const Config& c, const Layer& l, double n, bool all, bool cold) {
	const double dim = c.dim;
	double q = 0, kv = 0;
	if (l.recurrent.n_heads) q += l.recurrent.values(), kv += l.recurrent.channels() / 2.;
	if (attends(l)) {
		q += double(l.n_heads) * l.head_dim * (l.output_gate ? 1.5 : 1);
		kv += double(l.n_kv_heads) * (l.head_dim + second_dim(l)) / 2;
	}
	const double rows = cold ? std::max(n, double(kMatmulRows)) : n;
	const Streams& s = c.streams;
	const double coefs = s.kind == StreamKind::Manifold ? s.coefs() : 2. * s.rank + s.n; // of a row of all streams
	const double mixers = s.hyper() ? 4. * s.n * dim * coefs : 0;                        // two
	const double work = rows * (2 * dim * (q + 2 * kv) + mixers);
	return all ? work + rows * dim * 2 * q + mlp_work(c, l, n, cold) : work;
}
// Work of one token on a recurrent layer's state; the factor is large, because few lanes process the rows in sequence.
double rule_work(const Layer& l) { return 20. * l.recurrent.rule_words(); }
double attend_work(const Layer& l, double pairs) { return 2. * l.n_heads * (l.head_dim + second_dim(l)) * pairs; }

} // namespace

double move_work(const Layer& l) { return kPackWork * l.n_kv_heads * (l.head_dim + second_dim(l)); }

// Rows whose work fits `room`, as whole tiles of kernels if possible.
uint32_t Prefill::rows_that_fit(double room) const {
	uint32_t m = std::min(ubatch_, cell_end() - at_);
	while (m > 1) {
		const double work = rows_work(layer_, at_, m);
		if (work <= room) break;
		const uint32_t fewer = uint32_t(std::max(double(m) * std::max(room, 0.) / work, 1.));
		const uint32_t tile = fewer >= 128 ? 64 : fewer >= 32 ? 16 : fewer >= 8 ? 8 : 1;
		const uint32_t next = std::max(fewer / tile * tile, m > kMatmulRows ? kMatmulRows : 1);
		if (m <= kMatmulRows && rows_work(layer_, at_, next) > 0.7 * work) break; // fewer rows save little
		m = std::min(next, m - 1);
	}
	// A few rows already use most experts. More rows, until each expert has kMatmulRows, cost little more, so a piece
	// may take longer.
	constexpr double kLonger = 4;
	if (const Experts& e = runner_.config().layers[layer_].experts; e.n) {
		uint32_t enough = std::min({ubatch_, cell_end() - at_, e.n * kMatmulRows / e.used});
		const double least = std::max(room, rows_work(layer_, at_, m)); // one row may already take longer
		while (enough > m && rows_work(layer_, at_, enough) > kLonger * least) enough = enough * 3 / 4;
		m = std::max(m, enough);
	}
	return images_->whole(n_read_ + at_, n_read_ + at_ + m) - n_read_ - at_;
}

double Prefill::rows_work(uint32_t l, uint32_t first, uint32_t n) const {
	const Config& c = runner_.config();
	const bool all = computes_all(l);
	const double before = double(session_.n_tokens()) + first;
	const double seen = n * (before + 0.5 * (n + 1));
	const double own = projection_work(c, c.layers[l], n, all, /*cold=*/true) + rule_work(c.layers[l]) * n;
	if (!attends(c.layers[l])) return own;
	const bool reads = all || (kv_ && const_cast<Prefill*>(this)->cache_of(l).wants_queries());
	return own + (reads ? attend_work(c.layers[l], seen) : 0);
}

double Prefill::block_work(uint32_t first_token, uint32_t n) const {
	const Config& c = runner_.config();
	const double seen = n * (first_token + 0.5 * (n + 1));
	double layers = 0;
	for (uint32_t l = 0; l < layers_; ++l) {
		const Layer& layer = c.layers[l];
		const bool all = computes_all(l), owns = owns_kv(l);
		layers += rule_work(layer) * n;
		if (!attends(layer)) {
			layers += projection_work(c, layer, n, all, /*cold=*/false);
			continue;
		}
		layers += projection_work(c, layer, all || owns ? n : 1, all, /*cold=*/false) +
		          (all ? attend_work(layer, seen) : 0) + (owns ? n * move_work(layer) : 0);
	}
	return layers + 2. * c.vocab * c.dim * (hooks_.all_logits ? n : 1) + 2. * n * c.dim;
}

} // namespace kvrun
