// Weights of a vision encoder on a backend.
#include "models/vision_weights.h"
#include "engine/core/round.h"
#include "models/encoder_layer.h"
#include <cmath>

namespace kvrun {
namespace {

void load_layer(EncoderTensors& g, const VisionConfig& v, uint32_t l, LayerWeights& to) {
	const bool inner = v.inner_merge > 1 && l == v.inner_layer;
	const uint32_t in_file = v.inner_merge > 1 && l > v.inner_layer ? l - 1 : l;
	const Projector& p = *v.projector;
	load_encoder_layer(g, v.transformer, l,
	                   {.prefix = inner ? p.inner_merger : fmt::format("v.blk.{}.", in_file),
	                    .limited = v.limited,
	                    .quarters = p.rotation.pairs == PatchRotation::Quarters,
	                    .scales = v.layer_scales,
	                    .swapped_mlp = p.swapped_mlp},
	                   to);
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
		load_layer(g, v, l, out.transformer.layers[l]);
		g.upload();
	}
	be.wait();
	return out;
}

} // namespace kvrun
