// Weights of a vision encoder on a backend.
#include "models/vision_weights.h"
#include "engine/core/round.h"
#include <cmath>

namespace kvrun {
namespace {

// Channels of n heads of q and k in the order in which PatchRotation::Quarters pairs i and i + head_dim / 2.
std::vector<uint32_t> paired_quarters(uint32_t n, uint32_t head_dim) {
	std::vector<uint32_t> out;
	const uint32_t half = head_dim / 2, quarter = head_dim / 4;
	for (uint32_t h = 0; h < n; ++h)
		for (uint32_t i = 0; i < head_dim; ++i) {
			const uint32_t second = i / half, pair = i % half;
			out.push_back(h * head_dim + pair / quarter * half + second * quarter + pair % quarter);
		}
	return out;
}

std::vector<float> factors_of(const EncoderTensors& g, const VisionConfig& v, const std::string& name) {
	return v.layer_scales ? g.values(g.need(name, 1, v.transformer.dim)) : std::vector<float>();
}

void load_layer(EncoderTensors& g, const Gguf& file, const VisionConfig& v, uint32_t l, LayerWeights& to) {
	const Config& c = v.transformer;
	const uint64_t dim = c.dim, hidden = c.hidden_dim;
	const uint32_t heads = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
	const bool inner = v.inner_merge > 1 && l == v.inner_layer;
	const uint32_t in_file = v.inner_merge > 1 && l > v.inner_layer ? l - 1 : l;
	const std::string prefix = inner ? v.projector->inner_merger : fmt::format("v.blk.{}.", in_file);
	const auto name = [&](const char* what) { return prefix + what; };
	g.norm(to.attn_norm, name("ln1"), dim);
	const auto project = [&](View& w, View& b, const char* what, uint64_t rows, uint64_t cols,
	                         const std::vector<float>& factors = {}, const std::vector<uint32_t>& order = {}) {
		g.matrix(w, g.need(name(what) + ".weight", rows, cols), factors, order);
		g.bias(b, name(what) + ".bias", rows, factors, order);
		if (v.limited) g.limits(w, name(what));
	};
	const bool quarters = v.projector->rotation.pairs == PatchRotation::Quarters;
	const auto order = [&](uint32_t n) { return quarters ? paired_quarters(n, c.head_dim) : std::vector<uint32_t>(); };
	if (!quarters && file.find_tensor(name("attn_qkv.weight"))) {
		const std::array<uint32_t, 3> rows = {heads, kv, kv};
		g.parts({&to.wq, &to.wk, &to.wv}, g.need(name("attn_qkv.weight"), heads + 2 * kv, dim), rows);
		g.parts_of_bias({&to.bq, &to.bk, &to.bv}, name("attn_qkv.bias"), rows);
	} else {
		project(to.wq, to.bq, "attn_q", heads, dim, {}, order(c.n_heads));
		project(to.wk, to.bk, "attn_k", kv, dim, {}, order(c.n_kv_heads));
		project(to.wv, to.bv, "attn_v", kv, dim);
	}
	if (c.layers[l].qk_norm != QkNorm::None) {
		g.weights(to.q_norm, name("attn_q_norm"), c.head_dim, order(1));
		g.weights(to.k_norm, name("attn_k_norm"), c.head_dim, order(1));
	}
	project(to.wo, to.bo, "attn_out", dim, heads, factors_of(g, v, name("ls1.weight")));
	if (c.layers[l].attn_out_norm) g.norm(to.attn_out_norm, name("attn_post_norm"), dim);
	if (inner) return;
	g.norm(to.mlp_norm, name("ln2"), dim);
	if (c.layers[l].mlp_out_norm) g.norm(to.mlp_out_norm, name("ffn_post_norm"), dim);
	const char *up = "ffn_up", *down = "ffn_down";
	if (const GgufTensor* t = file.find_tensor(name("ffn_down.weight"));
	    v.projector->swapped_mlp && t && t->cols() == dim && dim != hidden)
		std::swap(up, down);
	if (c.layers[l].mlp == MlpKind::Gated) project(to.w_gate, to.b_gate, "ffn_gate", hidden, dim);
	project(to.w_up, to.b_up, up, hidden, dim);
	project(to.w_down, to.b_down, down, dim, hidden, factors_of(g, v, name("ls2.weight")));
}

void load_projector(EncoderTensors& g, const VisionConfig& v, VisionWeights& out) {
	const Projector& p = *v.projector;
	const uint32_t dim = v.transformer.dim;
	const float eps = v.transformer.norm_eps;
	if (*p.patch_norm) g.norm(out.patch_norm, p.patch_norm, dim, false);
	const auto step_eps = [&](float usual) { return p.step_eps > 0 ? p.step_eps : usual; };
	out.projector = g.steps(p.steps, v.merged_dim(), step_eps(kLayerNormEps), step_eps(eps));
	constexpr Step kDeep[] = {
	    {Step::LayerNorm, "norm"}, {Step::Matrix, "fc1"}, {Step::Activate}, {Step::Matrix, "fc2"}};
	constexpr Step kInner[] = {
	    {Step::LayerNorm, "ds_ln"}, {Step::Matrix, "ds_ffn_up"}, {Step::Activate}, {Step::Matrix, "ds_ffn_down"}};
	if (v.inner_merge > 1) out.inner = g.steps(kInner, dim * v.inner_merge * v.inner_merge, eps, eps, p.inner_merger);
	for (const uint32_t l : v.deep)
		out.deep.push_back(g.steps(kDeep, v.merged_dim(), eps, eps, fmt::format("v.deepstack.{}.", l)));
	if (!p.mean_scaled) return;
	const GgufTensor *bias = g.find("v.std_bias", 1, dim), *scale = g.find("v.std_scale", 1, dim);
	const float root = std::sqrt(float(dim));
	out.mean_bias.assign(dim, 0), out.mean_scale.assign(dim, root);
	if (!bias || !scale) return;
	out.mean_bias = g.values(*bias), out.mean_scale = g.values(*scale);
	for (size_t i = 0; i < dim; ++i) out.mean_bias[i] /= root, out.mean_scale[i] *= root;
}

} // namespace

uint32_t patch_columns(const VisionConfig& v) { return align_up(3 * v.patch * v.patch, 32u); }

VisionWeights load_vision(const Gguf& file, const VisionConfig& v, Backend& be) {
	VisionWeights out;
	EncoderTensors g(file, be, out);
	const Config& c = v.transformer;
	{
		const uint64_t pixels_of = uint64_t(3) * v.patch * v.patch;
		const GgufTensor* flat = file.find_tensor("v.patch_embd.weight"); // Llama 4's is a matrix
		const bool matrix = flat && flat->cols() == pixels_of;
		const GgufTensor& t = matrix ? g.need("v.patch_embd.weight", c.dim, pixels_of)
		                             : g.need("v.patch_embd.weight", uint64_t(3) * v.patch * c.dim, v.patch);
		std::vector<float> pixels = g.values(t);
		if (const GgufTensor* second =
		        g.find("v.patch_embd.weight.1", t.rows(), t.cols())) { // of the next frame: the same
			const std::vector<float> more = g.values(*second);
			for (size_t i = 0; i < more.size(); ++i) pixels[i] += more[i];
		}
		const size_t n = size_t(3) * v.patch * v.patch, columns = patch_columns(v);
		std::vector<float> rows(columns * c.dim);
		for (size_t i = 0; i < c.dim; ++i) std::copy_n(&pixels[i * n], n, &rows[i * columns]);
		g.matrix(out.patch, c.dim, uint32_t(columns), std::move(rows));
	}
	g.bias(out.patch_bias, "v.patch_embd.bias", c.dim);
	if (v.class_tokens) out.class_tokens = g.values(g.need("v.class_embd", v.class_tokens, c.dim));
	if (v.projector->table != PositionTable::None) {
		const uint64_t side = v.table_side;
		const uint64_t n = v.table_edge ? 2 * v.table_edge : side * side + v.table_class_rows();
		// GLM-OCR has none
		const bool needed = v.projector->table != PositionTable::Bicubic;
		if (const GgufTensor* t = g.find("v.position_embd.weight", n, c.dim); t || needed)
			out.positions = g.values(g.need("v.position_embd.weight", n, c.dim));
	}
	const Projector& p = *v.projector;
	if (*p.pixel_norm) {
		const std::string name = p.pixel_norm;
		const uint64_t n = uint64_t(3) * v.patch * v.patch;
		out.pixel_norm = g.values(g.need(name + ".weight", 1, n));
		out.pixel_bias = g.values(g.need(name + ".bias", 1, n));
	}
	g.norm(out.embedded, p.embedded_norm, c.dim, p.bare);
	g.norm(out.pre, p.pre_norm, c.dim, p.bare);
	g.norm(out.post, p.post_norm, c.dim, false);
	load_projector(g, v, out);
	g.upload();
	out.transformer.layers.resize(c.n_layers);
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		load_layer(g, file, v, l, out.transformer.layers[l]);
		g.upload();
	}
	be.wait();
	return out;
}

} // namespace kvrun
