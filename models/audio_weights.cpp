// Weights of an audio encoder on a backend.
#include "models/audio_weights.h"
#include "engine/core/round.h"
#include "models/encoder_keys.h"
#include "models/encoder_layer.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

// A convolution whose weights in the file are (out, in, places).
void load_convolution(EncoderTensors& g, const std::string& name, uint32_t in, ConvolutionWeights& to) {
	const uint32_t inner = 3, outer = to.plane ? 3 : 1;
	const GgufTensor& t = g.need(name + ".weight", kAnySize, inner);
	to.in = in, to.out = uint32_t(t.rows() / (uint64_t(in) * outer));
	g.check(to.out > 0 && t.rows() == uint64_t(to.out) * in * outer, name + ".weight");
	const std::vector<float> from = g.values(t);
	const size_t n = size_t(in) * to.places(), columns = to.columns();
	std::vector<float> rows(columns * to.out);
	for (size_t i = 0; i < to.out; ++i) std::copy_n(&from[i * n], n, &rows[i * columns]);
	g.matrix(to.w, to.out, uint32_t(columns), std::move(rows), t.type == DType::F32 ? DType::F32 : DType::F16);
	if (const GgufTensor* bias = g.find(name + ".bias", kAnySize, kAnySize)) {
		std::vector<float> values = g.values(*bias); // as a column
		g.check(values.size() == to.out, name + ".bias");
		g.vector(to.bias, std::move(values));
	}
}

void load_convolutions(EncoderTensors& g, AudioConfig& c, AudioWeights& out) {
	const Convolutions kind = c.projector->convolutions;
	if (kind == Convolutions::Matrix) {
		g.matrix(out.in, g.need("a.input_projection.weight", c.transformer.dim, c.bins));
		return g.bias(out.in_bias, "a.input_projection.bias", c.transformer.dim);
	}
	const bool planes = kind == Convolutions::Planes, normed = kind == Convolutions::Normed;
	if (kind == Convolutions::None) return;
	const uint32_t n = planes ? 3 : 2, dim = c.transformer.dim;
	out.convolutions.resize(n);
	uint32_t in = planes || normed ? 1 : c.bins, bins = c.bins;
	for (uint32_t i = 0; i < n; ++i) {
		ConvolutionWeights& to = out.convolutions[i];
		to.plane = planes || normed, to.across = planes;
		to.step = to.plane || i > 0 ? 2 : 1;
		const std::string name = fmt::format("a.conv{}d.{}", planes ? 2 : 1, i + !normed);
		load_convolution(g, name, in, to);
		if (normed) {
			g.weights(to.norm.w, name + ".norm", to.out);
			g.vector(to.norm.b, std::vector<float>(to.out));
		}
		in = to.out, bins = (bins + 1) / 2;
	}
	if (!planes && !normed) {
		g.check(in == dim, "a.conv1d.2.weight");
		return;
	}
	const std::string name = planes ? "a.conv_out" : "a.input_projection";
	const GgufTensor& t = g.need(name + ".weight", dim, uint64_t(bins) * in);
	g.bias(out.in_bias, name + ".bias", dim);
	if (!planes) return g.matrix(out.in, t);
	const std::vector<float> from = g.values(t); // columns are channel, frequency; ours are frequency, channel
	std::vector<float> turned(from.size());
	for (size_t r = 0; r < dim; ++r)
		for (size_t ch = 0; ch < in; ++ch)
			for (size_t f = 0; f < bins; ++f) turned[(r * bins + f) * in + ch] = from[(r * in + ch) * bins + f];
	g.matrix(out.in, dim, bins * in, std::move(turned), t.type == DType::F32 ? DType::F32 : DType::F16);
}

constexpr uint32_t kDistances = 12;

// Keys of distances, of the matrix (dim, dim) times their sines and cosines.
std::vector<float> distance_keys(const std::vector<float>& w, uint32_t dim) {
	std::vector<float> out(size_t(kDistances) * dim), place(dim);
	const uint32_t half = dim / 2;
	for (uint32_t d = 0; d < kDistances; ++d) {
		for (uint32_t i = 0; i < half; ++i) {
			const double angle = d * std::exp(-std::log(10000.) * i / std::max(half - 1, 1u));
			place[i] = float(std::sin(angle)), place[half + i] = float(std::cos(angle));
		}
		for (uint32_t r = 0; r < dim; ++r) {
			double sum = 0;
			for (uint32_t i = 0; i < dim; ++i) sum += double(w[size_t(r) * dim + i]) * place[i];
			out[size_t(d) * dim + r] = float(sum);
		}
	}
	return out;
}

void project(EncoderTensors& g, Projection& to, const std::string& name, uint64_t rows, uint64_t cols) {
	g.matrix(to.w, g.need(name + ".weight", rows, cols));
	g.bias(to.bias, name + ".bias", rows);
}

// Keys of distances block - 1 down to 1 - block, channel by channel, of rows in the file from the farthest behind on.
std::vector<float> block_keys(const std::vector<float>& rows, const AudioConfig& a) {
	const uint32_t n = 2 * a.block - 1, dim = a.transformer.head_dim;
	std::vector<float> out(size_t(n) * dim);
	for (uint32_t t = 0; t < n; ++t)
		for (uint32_t i = 0; i < dim; ++i)
			out[size_t(i) * n + t] = rows[size_t(a.farthest + a.block - 1 - t) * dim + i];
	return out;
}

void load_conformer(EncoderTensors& g, AudioConfig& a, uint32_t l, ConformerWeights& to) {
	const Config& c = a.transformer;
	const uint32_t dim = c.dim;
	const bool blocks = a.projector->layers == AudioLayers::Blocks;
	const auto name = [&](const char* what) { return fmt::format("a.blk.{}.{}", l, what); };
	const auto matrix = [&](Projection& p, const char* what, uint64_t rows, uint64_t cols) {
		project(g, p, name(what), rows, cols);
		if (a.limited) g.limits(p.w, name(what));
	};
	const auto mlp = [&](ConformerMlp& m, const std::string& number) {
		g.norm(m.norm, name(("ffn_norm" + number).c_str()), dim);
		matrix(m.up, ("ffn_up" + number).c_str(), c.hidden_dim, dim);
		matrix(m.down, ("ffn_down" + number).c_str(), dim, c.hidden_dim);
		if (!blocks) g.norm(m.post_norm, name(("ffn_post_norm" + number).c_str()), dim);
	};
	mlp(to.first, ""), mlp(to.second, "_1");
	g.norm(to.attn_norm, name(blocks ? "ln1" : "attn_pre_norm"), dim);
	matrix(to.q, "attn_q", dim, dim);
	matrix(to.k, "attn_k", dim, dim);
	matrix(to.v, "attn_v", dim, dim);
	matrix(to.out, "attn_out", dim, dim);
	g.norm(to.conv_norm, name("norm_conv"), dim);
	const uint64_t wide = blocks ? g.need(name("conv_pw2.weight"), dim, kAnySize).cols() : dim;
	g.check(wide % 4 == 0, name("conv_pw2.weight"));
	matrix(to.widen, "conv_pw1", 2 * wide, dim);
	const GgufTensor& kernel = g.need(name("conv_dw.weight"), wide, kAnySize);
	a.kernel = uint32_t(kernel.cols());
	g.check(a.kernel > 0 && a.kernel <= 64, name("conv_dw.weight"));
	to.kernel = g.values(kernel);
	matrix(to.narrow, "conv_pw2", dim, wide);
	g.norm(to.out_norm, name("ln2"), dim);
	if (blocks) { // the batch norm becomes a part of the convolution
		const std::vector<float> by = g.values(g.need(name("conv_norm.weight"), 1, wide));
		for (size_t i = 0; i < to.kernel.size(); ++i) to.kernel[i] *= by[i / a.kernel];
		to.shift = g.values(g.need(name("conv_norm.bias"), 1, wide));
		to.scale.assign(c.head_dim, 1);
		to.places = block_keys(g.values(g.need(name("attn_rel_pos_emb"), 2 * uint64_t(a.farthest) + 1, c.head_dim)), a);
		return;
	}
	g.norm(to.attn_post_norm, name("attn_post_norm"), dim);
	g.norm(to.conv_post_norm, name("conv_norm"), dim);
	to.scale = g.values(g.need(name("per_dim_scale.weight"), 1, c.head_dim));
	to.places = distance_keys(g.values(g.need(name("attn_k_rel.weight"), dim, dim)), dim);
}

// Of any number of characters; zeros fill it up, because devices multiply some columns at once.
void load_characters(EncoderTensors& g, uint32_t dim, AudioWeights& out) {
	const GgufTensor& to = g.need("a.enc_ctc_out.weight", kAnySize, dim);
	g.check(to.rows() <= kMostEncoderDim, "a.enc_ctc_out.weight");
	const uint32_t n = out.n_characters = uint32_t(to.rows()), filled = align_up(n, 32u);
	const GgufTensor& from = g.need("a.enc_ctc_out_mid.weight", dim, n);
	std::vector<float> rows = g.values(to), bias(filled), columns(size_t(dim) * filled);
	rows.resize(size_t(filled) * dim);
	if (const GgufTensor* b = g.find("a.enc_ctc_out.bias", 1, n)) std::ranges::copy(g.values(*b), bias.begin());
	const std::vector<float> narrow = g.values(from);
	for (size_t r = 0; r < dim; ++r) std::copy_n(&narrow[r * n], n, &columns[r * filled]);
	const auto type = [](const GgufTensor& t) { return t.type == DType::F32 ? DType::F32 : DType::F16; };
	g.matrix(out.characters.w, filled, dim, std::move(rows), type(to));
	g.vector(out.characters.bias, std::move(bias));
	g.matrix(out.of_characters.w, dim, filled, std::move(columns), type(from));
	g.bias(out.of_characters.bias, "a.enc_ctc_out_mid.bias", dim);
}

void load_queries(EncoderTensors& g, const AudioConfig& a, WindowQueries& to) {
	const uint32_t dim = a.transformer.dim;
	to.queries = g.values(g.need("a.proj_query", a.queries, dim));
	g.norm(to.norm, "a.proj_norm", dim);
	const auto has = [&](const char* what) {
		return g.find(fmt::format("a.proj_blk.{}.{}.weight", to.layers.size(), what), kAnySize, kAnySize);
	};
	do to.layers.emplace_back();
	while (has("self_attn_q") || has("ffn_up"));
	for (size_t l = 0; l < to.layers.size(); ++l) {
		const auto name = [&](const char* what) { return fmt::format("a.proj_blk.{}.{}", l, what); };
		const auto attention = [&](QueryLayer::Attention& x, const std::string& kind) {
			project(g, x.q, name((kind + "_q").c_str()), dim, dim);
			project(g, x.k, name((kind + "_k").c_str()), dim, dim);
			project(g, x.v, name((kind + "_v").c_str()), dim, dim);
			project(g, x.out, name((kind + "_out").c_str()), dim, dim);
			g.norm(x.norm, name((kind + "_norm").c_str()), dim);
		};
		QueryLayer& x = to.layers[l];
		attention(x.among, "self_attn"), attention(x.rows, "cross_attn");
		const uint64_t hidden = g.need(name("ffn_up.weight"), kAnySize, dim).rows();
		g.check(hidden % 4 == 0, name("ffn_up.weight"));
		project(g, x.up, name("ffn_up"), hidden, dim);
		project(g, x.down, name("ffn_down"), dim, hidden);
		g.norm(x.norm, name("ffn_norm"), dim);
	}
}

} // namespace

AudioWeights load_audio(const Gguf& file, AudioConfig& a, Backend& be) {
	AudioWeights out;
	EncoderTensors g(file, be, out);
	const Config& c = a.transformer;
	const AudioProjector& p = *a.projector;
	load_convolutions(g, a, out);
	if (p.layers == AudioLayers::Attention && !p.rotated) {
		const GgufTensor& t = g.need("a.position_embd.weight", kAnySize, c.dim);
		g.check(t.rows() >= a.shortened(a.part()), "a.position_embd.weight");
		out.positions = g.values(t);
	}
	const float eps = p.step_eps > 0 ? p.step_eps : c.norm_eps;
	const auto stack = std::ranges::find(p.steps, Step::Stack, &Step::kind);
	const bool stacked = stack != p.steps.end();
	if (stacked) out.before = g.steps({p.steps.begin(), stack}, c.dim, kLayerNormEps, eps);
	out.projector =
	    g.steps(stacked ? std::span(stack + 1, p.steps.end()) : std::span(p.steps), a.joined_dim(), kLayerNormEps, eps);
	if (p.layers == AudioLayers::Blocks) load_characters(g, c.dim, out);
	if (p.asked) load_queries(g, a, out.asked);
	g.upload();
	if (p.layers == AudioLayers::Conformer || p.layers == AudioLayers::Blocks) out.conformer.resize(c.n_layers);
	if (p.layers == AudioLayers::Attention) out.transformer.layers.resize(c.n_layers);
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		if (!out.conformer.empty())
			load_conformer(g, a, l, out.conformer[l]);
		else
			load_encoder_layer(g, c, l, {.prefix = fmt::format("a.blk.{}.", l)}, out.transformer.layers[l]);
		g.upload();
	}
	be.wait();
	return out;
}

} // namespace kvrun
