// Runs a sound through the layers of Gemma's audio encoder.
#include "engine/run/conformer.h"
#include "engine/run/arena.h"
#include "engine/run/row_encoder.h"
#include "engine/run/tile_encoder.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvrun {
namespace {

constexpr uint32_t kSeen = 12; // rows that a row sees: itself and those before it
constexpr float kCap = 50;     // of scores

// On the host: a row sees 12, which is little beside the projections around it.
// q, k, v: (n, heads * head_dim). places: keys of distances. out: as q.
std::vector<float> attend_near(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
                               const std::vector<float>& places, uint32_t n, uint32_t heads, uint32_t head_dim) {
	const size_t dim = size_t(heads) * head_dim;
	std::vector<float> out(n * dim);
	float weights[kSeen];
	for (size_t t = 0; t < n; ++t)
		for (size_t h = 0; h < heads; ++h) {
			const uint32_t seen = uint32_t(std::min<size_t>(t + 1, kSeen));
			const float* query = &q[t * dim + h * head_dim];
			float most = -kCap, sum = 0;
			for (uint32_t d = 0; d < seen; ++d) {
				const float *key = &k[(t - d) * dim + h * head_dim], *place = &places[d * dim + h * head_dim];
				float score = 0;
				for (uint32_t i = 0; i < head_dim; ++i) score += query[i] * (key[i] + place[i]);
				weights[d] = kCap * std::tanh(score / kCap);
				most = std::max(most, weights[d]);
			}
			for (uint32_t d = 0; d < seen; ++d) sum += weights[d] = std::exp(weights[d] - most);
			for (uint32_t d = 0; d < seen; ++d) {
				const float* value = &v[(t - d) * dim + h * head_dim];
				for (uint32_t i = 0; i < head_dim; ++i) out[t * dim + h * head_dim + i] += weights[d] / sum * value[i];
			}
		}
	return out;
}

// Each channel by itself, from `width` - 1 rows before on.
std::vector<float> convolve_behind(const std::vector<float>& x, const std::vector<float>& kernel, uint32_t n,
                                   uint32_t dim, uint32_t width) {
	std::vector<float> out(x.size());
	for (uint32_t t = 0; t < n; ++t)
		for (uint32_t j = 0; j < width; ++j) {
			if (t + j + 1 < width) continue;
			const float* from = &x[size_t(t + j + 1 - width) * dim];
			for (uint32_t c = 0; c < dim; ++c) out[size_t(t) * dim + c] += from[c] * kernel[size_t(c) * width + j];
		}
	return out;
}

} // namespace

ConformerRun::ConformerRun(AudioEncoder& e, const AudioPiece& piece)
    : encoder_(e), be_(e.backend()), config_(e.config().transformer) {
	const std::vector<float> x = e.embedded(piece);
	n_ = uint32_t(x.size() / config_.dim);
	const uint32_t dim = config_.dim, wide = std::max(config_.hidden_dim, 2 * dim);
	allocate(be_, memory_, "rows of a sound", [&](Arena& a) {
		for (View* v : {&x_, &y_, &b_, &c_}) *v = a.take(DType::F32, n_, dim);
		for (View* v : {&a_, &within_}) *v = a.take(DType::F32, n_, wide);
	});
	write_view(be_, x_, x);
}

// Within the limits of the projection, if it has any.
void ConformerRun::multiply(const View& out, const View& w, const View& x) {
	const Limits* limited = limits_of(encoder_.weights().transformer, w);
	const Proj p[] = {{out, w, {}}};
	if (!limited) return be_.matmul(p, x, Epilogue::None, /*decode=*/false);
	const Limits& l = *limited;
	const View within = shaped(within_, x.shape[0], x.shape[1]);
	be_.activate(within, x, {}, {.function = Activation::Clamp, .range = {l.in_low, l.in_high}});
	be_.matmul(p, within, Epilogue::None, /*decode=*/false);
	be_.activate(out, out, {}, {.function = Activation::Clamp, .range = {l.out_low, l.out_high}});
}

void ConformerRun::add_half_mlp(const ConformerMlp& m) {
	const View hidden = shaped(a_, n_, config_.hidden_dim);
	be_.rmsnorm(y_, x_, m.norm.w, config_.norm_eps);
	multiply(hidden, m.up, y_);
	be_.activate(hidden, hidden, {}, {.function = Activation::Silu});
	multiply(y_, m.down, hidden);
	be_.rmsnorm(y_, y_, m.post_norm.w, config_.norm_eps);
	be_.activate(x_, y_, {}, {.scale = 0.5f, .add = true});
}

void ConformerRun::add_attention(const ConformerWeights& w) {
	const uint32_t heads = config_.n_heads, head_dim = config_.head_dim;
	be_.rmsnorm(y_, x_, w.attn_norm.w, config_.norm_eps);
	const View v = shaped(a_, n_, config_.dim);
	multiply(b_, w.q, y_);
	multiply(c_, w.k, y_);
	multiply(v, w.v, y_);
	std::vector<float> q = read_view(be_, b_), k = read_view(be_, c_);
	const double query = 1 / (std::sqrt(double(head_dim)) * std::numbers::ln2);
	for (size_t i = 0; i < q.size(); ++i) q[i] *= float(query) * w.scale[i % head_dim];
	const float key = float(std::log(1 + std::numbers::e) / std::numbers::ln2);
	for (float& x : k) x *= key;
	write_view(be_, b_, attend_near(q, k, read_view(be_, v), w.places, n_, heads, head_dim));
	multiply(y_, w.out, b_);
	be_.rmsnorm(y_, y_, w.attn_post_norm.w, config_.norm_eps);
	be_.activate(x_, y_, {}, {.add = true});
}

void ConformerRun::add_convolution(const ConformerWeights& w) {
	const uint32_t dim = config_.dim;
	be_.rmsnorm(y_, x_, w.conv_norm.w, config_.norm_eps);
	const View wide = shaped(a_, n_, 2 * dim);
	multiply(wide, w.widen, y_);
	const std::vector<float> both = read_view(be_, wide);
	std::vector<float> gated(size_t(n_) * dim);
	for (size_t i = 0; i < gated.size(); ++i) {
		const size_t at = i / dim * 2 * dim + i % dim;
		gated[i] = both[at] / (1 + std::exp(-both[at + dim]));
	}
	write_view(be_, b_, convolve_behind(gated, w.kernel, n_, dim, encoder_.config().kernel));
	be_.rmsnorm(b_, b_, w.conv_post_norm.w, config_.norm_eps);
	be_.activate(b_, b_, {}, {.function = Activation::Silu});
	multiply(y_, w.narrow, b_);
	be_.activate(x_, y_, {}, {.add = true});
}

void ConformerRun::step() {
	be_.at_layer(0); // of a split the first device has the encoder
	const ConformerWeights& w = encoder_.weights().conformer[layer_++];
	add_half_mlp(w.first);
	add_attention(w);
	add_convolution(w);
	add_half_mlp(w.second);
	be_.rmsnorm(x_, x_, w.out_norm.w, config_.norm_eps);
	be_.submit();
}

TileRows ConformerRun::finish() { return encoder_.projected(read_view(be_, x_)); }

} // namespace kvrun
