// Weights of a vision encoder on a backend.
#include "models/vision_weights.h"
#include "engine/core/round.h"
#include "models/tensor_values.h"
#include <cmath>

namespace kvrun {
namespace {

constexpr uint32_t kAny = 0; // of a shape: any number

// Collects tensors, which then share a buffer.
class Group {
 public:
	Group(const Gguf& g, Backend& be, VisionWeights& to) : g_(g), be_(be), to_(to) {}

	const GgufTensor* find(const std::string& name, uint64_t rows, uint64_t cols) const {
		const GgufTensor* t = g_.find_tensor(name);
		if (t && ((rows != kAny && t->rows() != rows) || (cols != kAny && t->cols() != cols)))
			fail(Code::Format, "{}: tensor {} is {} x {}, expected {} x {}; the file is damaged", g_.name(), name,
			     t->rows(), t->cols(), rows == kAny ? "any" : std::to_string(rows),
			     cols == kAny ? "any" : std::to_string(cols));
		return t;
	}
	const GgufTensor& need(const std::string& name, uint64_t rows, uint64_t cols) const {
		const GgufTensor* t = find(name, rows, cols);
		if (!t) fail(Code::Format, "{}: tensor {} is missing; get the file again", g_.name(), name);
		return *t;
	}
	// A matrix, or the weights of a convolution over merged patches, as a matrix.
	const GgufTensor& need_matrix(const std::string& name, uint64_t columns) {
		const GgufTensor* t = find(name, kAny, kAny);
		if (!t || t->n_dims != 4 || t->cols() * t->shape[1] * t->shape[2] != columns) return need(name, kAny, columns);
		GgufTensor& flat = flat_.emplace_back(*t);
		flat.shape[0] = columns, flat.shape[1] = t->shape[3], flat.shape[2] = flat.shape[3] = 1;
		return flat;
	}
	std::vector<float> values(const GgufTensor& t) const { return tensor_values(g_, t); }

	// A matrix in its own type, its rows in another order if given; with factors (rows) that its rows are multiplied
	// by, in f32 or f16.
	void matrix(View& to, const GgufTensor& t, const std::vector<float>& factors = {},
	            const std::vector<uint32_t>& order = {}) {
		if (factors.empty()) {
			items_.push_back({&to, t.type, uint32_t(t.rows()), uint32_t(t.cols()), &t, {}, 0, order});
			return;
		}
		std::vector<float> v = values(t);
		for (size_t i = 0; i < v.size(); ++i) v[i] *= factors[i / t.cols()];
		matrix(to, uint32_t(t.rows()), uint32_t(t.cols()), std::move(v), t.type == DType::F32 ? t.type : DType::F16);
	}
	void matrix(View& to, uint32_t rows, uint32_t cols, std::vector<float> v, DType type = DType::F32) {
		items_.push_back({&to, type, rows, cols, nullptr, std::move(v)});
	}
	void vector(View& to, std::vector<float> v) {
		const uint32_t n = uint32_t(v.size());
		items_.push_back({&to, DType::F32, n, 0, nullptr, std::move(v)});
	}
	// Nothing if the file has none; then with factors or in another order, if given.
	void bias(View& to, const std::string& name, uint64_t n, const std::vector<float>& factors = {},
	          const std::vector<uint32_t>& order = {}) {
		const GgufTensor* t = find(name, 1, n);
		if (!t) return;
		std::vector<float> v = values(*t);
		for (size_t i = 0; i < factors.size(); ++i) v[i] *= factors[i];
		vector(to, ordered(v, order));
	}
	// Matrices of q, k and v, or biases, that the file has as one.
	void parts(const std::array<View*, 3>& to, const GgufTensor& t, const std::array<uint32_t, 3>& rows) {
		for (uint32_t i = 0, first = 0; i < 3; first += rows[i++])
			items_.push_back({to[i], t.type, rows[i], uint32_t(t.cols()), &t, {}, first});
	}
	void parts_of_bias(const std::array<View*, 3>& to, const std::string& name, const std::array<uint32_t, 3>& rows) {
		const GgufTensor* t = find(name, 1, uint64_t(rows[0]) + rows[1] + rows[2]);
		if (!t) return;
		const std::vector<float> v = values(*t);
		auto from = v.begin();
		for (size_t i = 0; i < 3; from += rows[i++]) vector(*to[i], {from, from + rows[i]});
	}
	// Limits of a matrix, in four tensors of one value beside it.
	void limits(const View& w, const std::string& name) {
		const auto value = [&](const char* what) { return values(need(name + what, 1, 1))[0]; };
		limits_.push_back({&w, {value(".input_min"), value(".input_max"), value(".output_min"), value(".output_max")}});
	}
	void weights(View& to, const std::string& name, uint64_t n, const std::vector<uint32_t>& order = {}) {
		vector(to, ordered(values(need(name + ".weight", 1, n)), order));
	}
	void norm(NormWeights& to, const std::string& name, uint64_t n, bool needed = true) {
		if (!needed && !find(name + ".weight", 1, n)) return;
		weights(to.w, name, n);
		bias(to.b, name + ".bias", n);
	}
	void upload() {
		size_t bytes = 0;
		const auto size_of = [&](const Item& i) {
			return i.cols ? be_.weight_row_bytes(i.type, i.cols) * i.rows : i.rows * sizeof(float);
		};
		for (const Item& i : items_) bytes += align_up(size_of(i), kBufferAlign);
		if (!bytes) return;
		const Buffer& buffer = to_.buffers.emplace_back(be_.alloc_part(0, bytes, Mem::Device, "vision encoder"));
		to_.bytes += buffer.bytes();
		size_t at = 0;
		for (Item& i : items_) {
			*i.to = i.cols ? view(buffer, at, i.type, i.rows, i.cols) : view(buffer, at, i.type, i.rows);
			at += align_up(size_of(i), kBufferAlign);
			if (i.tensor)
				write_tensor(be_, *i.to, g_, *i.tensor, i.first, i.order);
			else if (i.cols)
				write_values(be_, *i.to, i.values);
			else
				be_.write(buffer, i.to->at, std::as_bytes(std::span(i.values)));
		}
		be_.submit();
		items_.clear();
		for (const auto& [w, limits] : limits_) to_.transformer.limits.push_back({w->buf, w->at, limits});
		limits_.clear();
	}

 private:
	struct Item {
		View* to;
		DType type;
		uint32_t rows, cols; // no columns: a vector
		const GgufTensor* tensor;
		std::vector<float> values; // where there is no tensor
		uint32_t first = 0;        // row of the tensor
		std::vector<uint32_t> order = {};
	};
	static std::vector<float> ordered(std::vector<float> v, const std::vector<uint32_t>& order) {
		std::vector<float> out(order.size());
		for (size_t i = 0; i < order.size(); ++i) out[i] = v[order[i]];
		return order.empty() ? v : out;
	}
	const Gguf& g_;
	Backend& be_;
	VisionWeights& to_;
	std::vector<Item> items_;
	std::vector<std::pair<const View*, Limits>> limits_;
	std::deque<GgufTensor> flat_;
};

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

std::vector<float> factors_of(const Group& g, const VisionConfig& v, const std::string& name) {
	return v.layer_scales ? g.values(g.need(name, 1, v.transformer.dim)) : std::vector<float>();
}

void load_layer(Group& g, const Gguf& file, const VisionConfig& v, uint32_t l, LayerWeights& to) {
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

constexpr float kLayerNormEps = 1e-5f; // in projectors, whatever the transformer's

// One step after the other; `columns` of what the first one reads.
std::vector<StepWeights> load_steps(Group& g, std::span<const Step> steps, uint32_t columns, float layer_norm_eps,
                                    float rms_eps, const std::string& prefix = "") {
	std::vector<StepWeights> out;
	out.reserve(steps.size()); // the group keeps their addresses
	for (const Step& s : steps) {
		if (s.kind == Step::End) break;
		const std::string name = prefix + s.tensor;
		const std::string weight = name + (s.kind == Step::GatedMlp  ? "gate.weight"
		                                   : s.kind == Step::Queries ? "query"
		                                   : s.joins()               ? ""
		                                                             : ".weight");
		if (s.optional && !g.find(weight, kAny, kAny)) continue;
		StepWeights& to = out.emplace_back(StepWeights{.kind = s.kind, .rows = columns});
		to.norm_eps = s.kind == Step::LayerNorm || s.kind == Step::Queries ? layer_norm_eps : rms_eps;
		to.function = s.function;
		switch (s.kind) {
		case Step::Matrix: {
			const GgufTensor& t = g.need_matrix(weight, columns);
			g.matrix(to.w, t);
			to.rows = uint32_t(t.rows());
			g.bias(to.bias, name + ".bias", to.rows);
			break;
		}
		case Step::Turned: {
			const GgufTensor& t = g.need(weight, columns, kAny);
			const std::vector<float> from = g.values(t);
			std::vector<float> turned(from.size());
			to.rows = uint32_t(t.cols());
			for (size_t r = 0; r < columns; ++r)
				for (size_t c = 0; c < to.rows; ++c) turned[c * columns + r] = from[r * to.rows + c];
			g.matrix(to.w, to.rows, columns, std::move(turned));
			break;
		}
		case Step::LayerNorm:
		case Step::RmsNorm: g.norm(to.norm, name, columns); break;
		case Step::UnitNorm: g.vector(to.norm.w, std::vector<float>(columns, 1)); break;
		case Step::GatedMlp: {
			const GgufTensor &gate = g.need(weight, kAny, columns),
			                 &down = g.need(name + "down.weight", kAny, gate.rows());
			g.matrix(to.gate, gate);
			g.matrix(to.up, g.need(name + "up.weight", gate.rows(), columns));
			g.matrix(to.w, down);
			to.rows = uint32_t(down.rows());
			break;
		}
		case Step::Queries: {
			to.row = g.values(g.need(weight, kAny, columns));
			g.norm(to.norm, name + "ln_q", columns);
			const auto project = [&](View& w, View& b, const char* what) {
				g.matrix(w, g.need(fmt::format("{}attn.{}.weight", name, what), columns, columns));
				g.bias(b, fmt::format("{}attn.{}.bias", name, what), columns);
			};
			project(to.wq, to.bq, "q"), project(to.wk, to.bk, "k"), project(to.wv, to.bv, "v");
			project(to.w, to.bias, "out");
			break;
		}
		case Step::Between:
		case Step::Behind:
		case Step::First:
		case Step::Last: to.row = g.values(g.need(name, 1, columns)); break;
		case Step::Activate:
		case Step::End: break;
		}
		columns = to.rows;
	}
	return out;
}

void load_projector(Group& g, const VisionConfig& v, VisionWeights& out) {
	const Projector& p = *v.projector;
	const uint32_t dim = v.transformer.dim;
	const float eps = v.transformer.norm_eps;
	if (*p.patch_norm) g.norm(out.patch_norm, p.patch_norm, dim, false);
	const auto step_eps = [&](float usual) { return p.step_eps > 0 ? p.step_eps : usual; };
	out.projector = load_steps(g, p.steps, v.merged_dim(), step_eps(kLayerNormEps), step_eps(eps));
	constexpr Step kDeep[] = {
	    {Step::LayerNorm, "norm"}, {Step::Matrix, "fc1"}, {Step::Activate}, {Step::Matrix, "fc2"}};
	constexpr Step kInner[] = {
	    {Step::LayerNorm, "ds_ln"}, {Step::Matrix, "ds_ffn_up"}, {Step::Activate}, {Step::Matrix, "ds_ffn_down"}};
	if (v.inner_merge > 1)
		out.inner = load_steps(g, kInner, dim * v.inner_merge * v.inner_merge, eps, eps, p.inner_merger);
	for (const uint32_t l : v.deep)
		out.deep.push_back(load_steps(g, kDeep, v.merged_dim(), eps, eps, fmt::format("v.deepstack.{}.", l)));
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
	Group g(file, be, out);
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
