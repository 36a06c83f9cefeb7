// Weights of a vision encoder on a backend.
#include "models/vision_weights.h"
#include "engine/core/round.h"
#include "models/tensor_values.h"

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
	std::vector<float> values(const GgufTensor& t) const { return tensor_values(g_, t); }

	// A matrix in its own type; with factors (rows) that its rows are multiplied by, in f32.
	void matrix(View& to, const GgufTensor& t, const std::vector<float>& factors = {}) {
		if (factors.empty()) {
			items_.push_back({&to, t.type, uint32_t(t.rows()), uint32_t(t.cols()), &t, {}});
			return;
		}
		std::vector<float> v = values(t);
		for (size_t i = 0; i < v.size(); ++i) v[i] *= factors[i / t.cols()];
		matrix(to, uint32_t(t.rows()), uint32_t(t.cols()), std::move(v));
	}
	void matrix(View& to, uint32_t rows, uint32_t cols, std::vector<float> v) {
		items_.push_back({&to, DType::F32, rows, cols, nullptr, std::move(v)});
	}
	void vector(View& to, std::vector<float> v) {
		const uint32_t n = uint32_t(v.size());
		items_.push_back({&to, DType::F32, n, 0, nullptr, std::move(v)});
	}
	// Nothing if the file has none; then with factors, if given.
	void bias(View& to, const std::string& name, uint64_t n, const std::vector<float>& factors = {}) {
		const GgufTensor* t = find(name, 1, n);
		if (!t) return;
		std::vector<float> v = values(*t);
		for (size_t i = 0; i < factors.size(); ++i) v[i] *= factors[i];
		vector(to, std::move(v));
	}
	// Three matrices or biases that the file has as one.
	void thirds(const std::array<View*, 3>& to, const GgufTensor& t) {
		const auto n = uint32_t(t.rows() / 3);
		for (uint32_t i = 0; i < 3; ++i) items_.push_back({to[i], t.type, n, uint32_t(t.cols()), &t, {}, i * n});
	}
	void thirds_of_bias(const std::array<View*, 3>& to, const std::string& name, uint64_t n) {
		const GgufTensor* t = find(name, 1, 3 * n);
		if (!t) return;
		const std::vector<float> v = values(*t);
		for (size_t i = 0; i < 3; ++i)
			vector(*to[i], {v.begin() + ptrdiff_t(i * n), v.begin() + ptrdiff_t((i + 1) * n)});
	}
	void norm(NormWeights& to, const std::string& name, uint64_t n, bool needed = true) {
		const GgufTensor* w = needed ? &need(name + ".weight", 1, n) : find(name + ".weight", 1, n);
		if (!w) return;
		vector(to.w, values(*w));
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
				write_tensor(be_, *i.to, g_, *i.tensor, i.first);
			else if (i.cols)
				write_values(be_, *i.to, i.values);
			else
				be_.write(buffer, i.to->at, std::as_bytes(std::span(i.values)));
		}
		be_.submit();
		items_.clear();
	}

 private:
	struct Item {
		View* to;
		DType type;
		uint32_t rows, cols; // no columns: a vector
		const GgufTensor* tensor;
		std::vector<float> values; // where there is no tensor
		uint32_t first = 0;        // row of the tensor
	};
	const Gguf& g_;
	Backend& be_;
	VisionWeights& to_;
	std::vector<Item> items_;
};

std::vector<float> factors_of(const Group& g, const VisionConfig& v, const std::string& name) {
	return v.layer_scales ? g.values(g.need(name, 1, v.transformer.dim)) : std::vector<float>();
}

void load_layer(Group& g, const Gguf& file, const VisionConfig& v, uint32_t l, LayerWeights& to) {
	const Config& c = v.transformer;
	const uint64_t dim = c.dim, heads = uint64_t(c.n_heads) * c.head_dim, hidden = c.hidden_dim;
	const auto name = [&](const char* what) { return fmt::format("v.blk.{}.{}", l, what); };
	g.norm(to.attn_norm, name("ln1"), dim);
	const auto project = [&](View& w, View& b, const char* what, uint64_t rows, uint64_t cols,
	                         const std::vector<float>& factors = {}) {
		g.matrix(w, g.need(name(what) + ".weight", rows, cols), factors);
		g.bias(b, name(what) + ".bias", rows, factors);
	};
	if (file.find_tensor(name("attn_qkv.weight"))) {
		g.thirds({&to.wq, &to.wk, &to.wv}, g.need(name("attn_qkv.weight"), 3 * heads, dim));
		g.thirds_of_bias({&to.bq, &to.bk, &to.bv}, name("attn_qkv.bias"), heads);
	} else {
		project(to.wq, to.bq, "attn_q", heads, dim);
		project(to.wk, to.bk, "attn_k", heads, dim);
		project(to.wv, to.bv, "attn_v", heads, dim);
	}
	project(to.wo, to.bo, "attn_out", dim, heads, factors_of(g, v, name("ls1.weight")));
	g.norm(to.mlp_norm, name("ln2"), dim);
	const char *up = "ffn_up", *down = "ffn_down";
	if (const GgufTensor* t = file.find_tensor(name("ffn_down.weight"));
	    v.projector->swapped_mlp && t && t->cols() == dim && dim != hidden)
		std::swap(up, down);
	if (c.layers[l].mlp == MlpKind::Gated) project(to.w_gate, to.b_gate, "ffn_gate", hidden, dim);
	project(to.w_up, to.b_up, up, hidden, dim);
	project(to.w_down, to.b_down, down, dim, hidden, factors_of(g, v, name("ls2.weight")));
}

void load_mlp(Group& g, ProjectorWeights& to, const std::string& in_name, const std::string& out_name, uint64_t cols,
              uint64_t out_dim) {
	const GgufTensor& in = g.need(in_name + ".weight", kAny, cols);
	g.matrix(to.in, in);
	g.bias(to.in_bias, in_name + ".bias", in.rows());
	g.matrix(to.out, g.need(out_name + ".weight", out_dim, in.rows()));
	g.bias(to.out_bias, out_name + ".bias", out_dim);
}

void load_projector(Group& g, const VisionConfig& v, VisionWeights& out) {
	const Projector& p = *v.projector;
	const uint64_t dim = v.transformer.dim, merged = v.merged_dim();
	uint64_t cols = merged;
	const auto weight = [](const char* name) { return std::string(name) + ".weight"; };
	const bool merges = v.merge > 1 || p.merge != Merge::Channels;
	if (*p.patch_norm && merges) g.norm(out.patch_norm, p.patch_norm, dim);
	ProjectorWeights& to = out.projector;
	if (*p.merge_norm) g.norm(to.norm, p.merge_norm, merged);
	if (*p.linear && p.transposed) {
		const std::vector<float> from = g.values(g.need(weight(p.linear), merged, v.out_dim));
		std::vector<float> turned(from.size());
		for (size_t r = 0; r < merged; ++r)
			for (size_t c = 0; c < v.out_dim; ++c) turned[c * merged + r] = from[r * v.out_dim + c];
		g.matrix(to.linear, v.out_dim, uint32_t(merged), std::move(turned));
	} else if (*p.linear && merges) {
		const GgufTensor& t = g.need(weight(p.linear), *p.in ? kAny : v.out_dim, merged);
		g.matrix(to.linear, t);
		cols = t.rows();
	}
	if (!*p.in) return;
	load_mlp(g, to, p.in, p.out, cols, v.out_dim);
	out.deep.resize(v.deep.size());
	for (size_t i = 0; i < v.deep.size(); ++i) {
		const std::string name = fmt::format("v.deepstack.{}.", v.deep[i]);
		g.norm(out.deep[i].norm, name + "norm", merged);
		load_mlp(g, out.deep[i], name + "fc1", name + "fc2", merged, v.out_dim);
	}
	if (v.row_ends) out.row_end = g.values(g.need(p.row_end, 1, v.out_dim));
}

} // namespace

uint32_t patch_columns(const VisionConfig& v) { return align_up(3 * v.patch * v.patch, 32u); }

VisionWeights load_vision(const Gguf& file, const VisionConfig& v, Backend& be) {
	VisionWeights out;
	Group g(file, be, out);
	const Config& c = v.transformer;
	{
		const GgufTensor& t = g.need("v.patch_embd.weight", uint64_t(3) * v.patch * c.dim, v.patch);
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
	if (v.class_token) out.class_token = g.values(g.need("v.class_embd", 1, c.dim));
	if (has_table(v.projector->positions)) {
		const uint64_t side = v.image_size / v.patch;
		out.positions = g.values(g.need("v.position_embd.weight", side * side + (v.class_token ? 1 : 0), c.dim));
	}
	g.norm(out.pre, "v.pre_ln", c.dim, false);
	g.norm(out.post, "v.post_ln", c.dim, false);
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
