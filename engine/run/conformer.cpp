// Runs a sound through the layers of a Conformer.
#include "engine/run/conformer.h"
#include "engine/run/arena.h"
#include "engine/run/near_attention.h"
#include "engine/run/row_encoder.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvrun {
namespace {

// Each channel by itself, from row t - `before` to row t - `before` + width - 1. shift: what results begin with, or
// empty.
std::vector<float> convolve_channels(const std::vector<float>& x, const std::vector<float>& kernel,
                                     const std::vector<float>& shift, uint32_t n, uint32_t dim, uint32_t width,
                                     uint32_t before) {
	std::vector<float> out(x.size());
	for (uint32_t t = 0; t < n; ++t) {
		if (!shift.empty()) std::ranges::copy(shift, &out[size_t(t) * dim]);
		for (uint32_t j = 0; j < width; ++j) {
			if (t + j < before || t + j - before >= n) continue;
			const float* from = &x[size_t(t + j - before) * dim];
			for (uint32_t c = 0; c < dim; ++c) out[size_t(t) * dim + c] += from[c] * kernel[size_t(c) * width + j];
		}
	}
	return out;
}

void append(std::vector<float>& to, const std::vector<float>& more) { to.insert(to.end(), more.begin(), more.end()); }

} // namespace

ConformerRun::ConformerRun(AudioEncoder& e, const AudioPiece& piece)
    : encoder_(e), be_(e.backend()), config_(e.config().transformer) {
	const std::vector<float> x = e.embedded(piece);
	n_ = uint32_t(x.size() / config_.dim);
	uint32_t wide = config_.dim;
	for (const ConformerWeights& w : e.weights().conformer) wide = std::max(wide, w.narrow.w.shape[1]);
	const uint32_t m = std::min(n_, RowEncoder::kRows), widest = std::max(config_.hidden_dim, 2 * wide);
	allocate(be_, memory_, "rows of a sound", [&](Arena& a) {
		x_ = a.take(DType::F32, n_, config_.dim);
		for (View* v : {&y_, &c_}) *v = a.take(DType::F32, m, config_.dim);
		b_ = a.take(DType::F32, m, wide);
		a_ = a.take(DType::F32, m, widest);
		if (e.config().limited) within_ = a.take(DType::F32, m, widest);
	});
	write_view(be_, x_, x);
}

// Within the limits of the projection, if it has any.
void ConformerRun::multiply(const View& out, const Projection& by, const View& x) {
	const Limits* limited = limits_of(encoder_.weights().transformer, by.w);
	const Proj p[] = {{out, by.w, by.bias}};
	if (!limited) return be_.matmul(p, x, Epilogue::None, /*decode=*/false);
	const Limits& l = *limited;
	const View within = shaped(within_, x.shape[0], x.shape[1]);
	be_.activate(within, x, {}, {.function = Activation::Clamp, .range = {l.in_low, l.in_high}});
	be_.matmul(p, within, Epilogue::None, /*decode=*/false);
	be_.activate(out, out, {}, {.function = Activation::Clamp, .range = {l.out_low, l.out_high}});
}

void ConformerRun::norm(const View& out, const View& x, const NormWeights& w) {
	if (!w.w) return;
	if (config_.norm == NormKind::Rms)
		be_.rmsnorm(out, x, w.w, config_.norm_eps);
	else
		be_.layer_norm(out, x, w.w, w.b, config_.norm_eps);
}

// Calls f(first, rows of x_, so many of y_) for all rows, some at once.
template <class F> void ConformerRun::each_part(F f) {
	for (uint32_t first = 0; first < n_; first += RowEncoder::kRows) {
		const uint32_t m = std::min(RowEncoder::kRows, n_ - first);
		f(first, rows(x_, first, m), rows(y_, 0, m));
	}
}

void ConformerRun::add_half_mlp(const ConformerMlp& m) {
	each_part([&](uint32_t, const View& x, const View& y) {
		const View hidden = shaped(a_, x.shape[0], config_.hidden_dim);
		norm(y, x, m.norm);
		multiply(hidden, m.up, y);
		be_.activate(hidden, hidden, {}, {.function = Activation::Silu});
		multiply(y, m.down, hidden);
		norm(y, y, m.post_norm);
		be_.activate(x, y, {}, {.scale = 0.5f, .add = true});
	});
}

std::vector<float> ConformerRun::attended(const ConformerWeights& w, std::vector<float> q, std::vector<float> k,
                                          const std::vector<float>& v) const {
	const uint32_t heads = config_.n_heads, head_dim = config_.head_dim;
	if (const uint32_t block = encoder_.config().block)
		return attend_blocks(q, k, v, w.places, n_, block, heads, head_dim);
	const double query = 1 / (std::sqrt(double(head_dim)) * std::numbers::ln2);
	for (size_t i = 0; i < q.size(); ++i) q[i] *= float(query) * w.scale[i % head_dim];
	const float key = float(std::log(1 + std::numbers::e) / std::numbers::ln2);
	for (float& x : k) x *= key;
	return attend_before(q, k, v, w.places, n_, heads, head_dim);
}

void ConformerRun::add_attention(const ConformerWeights& w) {
	std::vector<float> q, k, v;
	each_part([&](uint32_t, const View& x, const View& y) {
		const uint32_t m = x.shape[0], dim = config_.dim;
		const View to_q = shaped(b_, m, dim), to_k = shaped(c_, m, dim), to_v = shaped(a_, m, dim);
		norm(y, x, w.attn_norm);
		multiply(to_q, w.q, y);
		multiply(to_k, w.k, y);
		multiply(to_v, w.v, y);
		append(q, read_view(be_, to_q)), append(k, read_view(be_, to_k)), append(v, read_view(be_, to_v));
	});
	const std::vector<float> all = attended(w, std::move(q), std::move(k), v);
	each_part([&](uint32_t first, const View& x, const View& y) {
		const View from = write_rows(all, first, x.shape[0]);
		multiply(y, w.out, from);
		norm(y, y, w.attn_post_norm);
		be_.activate(x, y, {}, {.add = true});
	});
}

// Some of the rows on the host.
View ConformerRun::write_rows(const std::vector<float>& all, uint32_t first, uint32_t n) {
	const size_t columns = all.size() / n_;
	const View to = shaped(b_, n, uint32_t(columns));
	be_.write(*to.buf, to.at, std::as_bytes(std::span(all).subspan(first * columns, n * columns)));
	return to;
}

void ConformerRun::add_convolution(const ConformerWeights& w) {
	const uint32_t wide = w.narrow.w.shape[1], kernel = encoder_.config().kernel;
	std::vector<float> gated;
	each_part([&](uint32_t, const View& x, const View& y) {
		norm(y, x, w.conv_norm);
		const View both = shaped(a_, x.shape[0], 2 * wide);
		multiply(both, w.widen, y);
		const std::vector<float> values = read_view(be_, both);
		for (size_t i = 0; i < values.size() / 2; ++i) {
			const size_t at = i / wide * 2 * wide + i % wide;
			gated.push_back(values[at] / (1 + std::exp(-values[at + wide])));
		}
	});
	const uint32_t before = encoder_.config().block ? kernel / 2 : kernel - 1;
	const std::vector<float> all = convolve_channels(gated, w.kernel, w.shift, n_, wide, kernel, before);
	each_part([&](uint32_t first, const View& x, const View& y) {
		const View from = write_rows(all, first, x.shape[0]);
		norm(from, from, w.conv_post_norm);
		be_.activate(from, from, {}, {.function = Activation::Silu});
		multiply(y, w.narrow, from);
		be_.activate(x, y, {}, {.add = true});
	});
}

// What a classifier says of rows, as shares of its characters.
void ConformerRun::add_characters() {
	const AudioWeights& w = encoder_.weights();
	const uint32_t n = w.characters.w.shape[0];
	Buffer memory;
	View shares;
	allocate(be_, memory, "characters", [&](Arena& a) { shares = a.take(DType::F32, y_.shape[0], n); });
	each_part([&](uint32_t, const View& x, const View& y) {
		const View some = rows(shares, 0, x.shape[0]);
		multiply(some, w.characters, x);
		std::vector<float> values = read_view(be_, some);
		for (size_t i = 0; i < values.size(); i += n) to_shares(std::span(values).subspan(i, w.n_characters));
		write_view(be_, some, values);
		multiply(y, w.of_characters, some);
		be_.activate(x, y, {}, {.add = true});
	});
	be_.submit();
	be_.wait(); // before its memory goes
}

void ConformerRun::step() {
	be_.at_layer(0); // of a split the first device has the encoder
	const ConformerWeights& w = encoder_.weights().conformer[layer_++];
	add_half_mlp(w.first);
	add_attention(w);
	add_convolution(w);
	add_half_mlp(w.second);
	norm(x_, x_, w.out_norm);
	if (encoder_.weights().characters.w && layer_ == config_.n_layers / 2) add_characters();
	be_.submit();
}

TileRows ConformerRun::finish() { return encoder_.projected(read_view(be_, x_)); }

} // namespace kvrun
