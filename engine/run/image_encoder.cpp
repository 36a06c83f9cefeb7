// Runs a vision encoder on a backend.
#include "engine/run/image_encoder.h"
#include "engine/run/arena.h"
#include "engine/run/layer_runner.h"
#include "engine/run/mlp_memory.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

void write(Backend& be, const View& to, const auto& values) {
	be.write(*to.buf, to.at, std::as_bytes(std::span(values)));
}
void read(Backend& be, const View& from, std::vector<float>& out) {
	out.resize(from.elements());
	be.read(*from.buf, from.at, std::as_writable_bytes(std::span(out)));
	be.submit();
	be.wait();
}

} // namespace

ImageEncoder::ImageEncoder(Backend& be, const Gguf& file, VisionConfig config)
    : be_(be), config_(std::move(config)), weights_(load_vision(file, config_, be)) {}

ImageEncoder::Grid ImageEncoder::grid_of(const Image& tile) const {
	KV_ASSERT(tile.width % config_.align() == 0 && tile.height % config_.align() == 0);
	return {tile.width / config_.patch, tile.height / config_.patch};
}

double ImageEncoder::work(const Image& tile) const {
	const Config& c = config_.transformer;
	const double n = grid_of(tile).n(), dim = c.dim, heads = double(c.n_heads) * c.head_dim;
	return c.n_layers * n * (2 * dim * (4 * heads + 3. * c.hidden_dim) + 4 * heads * n);
}

ImageEncoder::Order ImageEncoder::order_of(Grid g) const {
	Order out;
	const uint32_t edge = config_.window_period ? config_.window : std::max(g.columns, g.rows);
	for (uint32_t top = 0; top < g.rows; top += edge)
		for (uint32_t left = 0; left < g.columns; left += edge) {
			out.begins.push_back(uint32_t(out.patches.size()));
			for (uint32_t y = top; y < std::min(top + edge, g.rows); ++y)
				for (uint32_t x = left; x < std::min(left + edge, g.columns); ++x)
					out.patches.push_back(y * g.columns + x);
		}
	out.begins.push_back(g.n());
	return out;
}

// (patches, patch_columns()): channel, row, column; as the file's convolution has its weights.
std::vector<float> ImageEncoder::pixels(const Image& tile, Grid g, const Order& order) const {
	const uint32_t edge = config_.patch, columns = patch_columns(config_);
	std::vector<float> out(size_t(g.n()) * columns);
	for (uint32_t t = 0; t < g.n(); ++t) {
		const uint32_t i = order.patches[t];
		float* row = &out[size_t(t) * columns];
		for (uint32_t c = 0; c < 3; ++c)
			for (uint32_t y = 0; y < edge; ++y)
				for (uint32_t x = 0; x < edge; ++x) {
					const size_t at = size_t(i / g.columns * edge + y) * tile.width + i % g.columns * edge + x;
					*row++ = (float(tile.rgb[at * 3 + c]) / 255 - config_.mean[c]) / config_.deviation[c];
				}
	}
	return out;
}

// (patches, dim), and the class token behind them, with what the table has for it.
std::vector<float> ImageEncoder::added_rows(Grid g, const Order& order) const {
	const size_t dim = config_.transformer.dim;
	const std::vector<float>& table = weights_.positions;
	std::vector<float> out(g.n() * dim);
	if (!table.empty()) {
		const std::vector<float> rows = position_rows(config_, table, g);
		for (size_t t = 0; t < g.n(); ++t) std::copy_n(&rows[order.patches[t] * dim], dim, &out[t * dim]);
	}
	if (!config_.class_token) return out;
	const size_t own = config_.projector->table == PositionTable::SquareThenClass ? g.n() * dim : 0;
	for (size_t i = 0; i < dim; ++i) out.push_back(weights_.class_token[i] + (table.empty() ? 0 : table[own + i]));
	return out;
}

void ImageEncoder::norm(const View& x, const NormWeights& w, NormKind kind, float eps) {
	if (!w.w) return;
	if (kind == NormKind::Rms)
		be_.rmsnorm(x, x, w.w, eps);
	else
		be_.layer_norm(x, x, w.w, w.b, eps);
}

std::vector<float> ImageEncoder::transform(const Image& tile, Grid g, std::vector<std::vector<float>>& deep) {
	const Config& c = config_.transformer;
	const uint32_t n = g.n(), all = n + (config_.class_token ? 1 : 0), words = c.head_dim / 2;
	const Order order = order_of(g);
	LayerRunner runner(be_, c, weights_.transformer, all);
	Buffer memory;
	View x, patches, positions, ids, rope, k, v, at, at_windows;
	allocate(be_, memory, "image", [&](Arena& a) {
		x = a.take(DType::F32, all, c.dim);
		patches = a.take(DType::F32, n, patch_columns(config_));
		positions = a.take(DType::F32, all, c.dim);
		ids = a.take(DType::U32, all);
		rope = a.take(DType::F32, all, c.head_dim / 2, 2);
		k = a.take(DType::F16, c.n_kv_heads, all, c.head_dim);
		v = a.take(DType::F16, c.n_kv_heads, all, c.head_dim);
		at = a.take(DType::U32, all, c.n_kv_heads, 2);
		if (config_.window_period) at_windows = a.take(DType::U32, all, c.n_kv_heads, 2);
	});
	// Keys and values of windows lie one window after the other.
	const auto places = [&](const std::vector<uint32_t>& begins) {
		std::vector<uint32_t> out;
		for (size_t w = 0; w + 1 < begins.size(); ++w)
			for (uint32_t t = begins[w]; t < begins[w + 1]; ++t)
				for (uint32_t h = 0; h < c.n_kv_heads; ++h) {
					const uint32_t row = c.n_kv_heads * begins[w] + h * (begins[w + 1] - begins[w]) + t - begins[w];
					out.insert(out.end(), 2, row * words);
				}
		return out;
	};
	const std::vector<uint32_t> one = {0, all};
	write(be_, patches, pixels(tile, g, order));
	write(be_, positions, added_rows(g, order));
	write(be_, rope, patch_rotations(config_, g, order.patches));
	write(be_, at, places(one));
	if (at_windows) write(be_, at_windows, places(order.begins));
	be_.at_layer(0); // of a split the first device has the encoder
	const Proj embed[] = {{rows(x, 0, n), weights_.patch, weights_.patch_bias}};
	be_.matmul(embed, patches, Epilogue::None, /*decode=*/false);
	norm(rows(x, 0, n), weights_.embedded, c.norm, c.norm_eps);
	be_.activate(rows(x, 0, n), rows(positions, 0, n), {}, {.add = true});
	if (all > n) be_.copy(rows(x, n, 1), rows(positions, n, 1));
	norm(x, weights_.pre, c.norm, c.norm_eps);
	const auto read_patches = [&] { // in the image's order
		std::vector<float> values, out(size_t(n) * c.dim);
		read(be_, rows(x, 0, n), values);
		for (size_t t = 0; t < n; ++t) std::copy_n(&values[t * c.dim], c.dim, &out[size_t(order.patches[t]) * c.dim]);
		return out;
	};
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		const LayerRows r = runner.rows_of(l, x, {ids, {}}, {rope}, 0, all);
		const bool windowed = config_.windowed(l);
		const std::vector<uint32_t>& begins = windowed ? order.begins : one;
		runner.project_in(l, r, /*decode=*/false);
		runner.rotate(l, r, 0, all, {as_words(k), as_words(v), windowed ? at_windows : at, 1});
		for (size_t w = 0; w + 1 < begins.size(); ++w) {
			const uint32_t from = begins[w], m = begins[w + 1] - from;
			const auto part = [&](const View& all_rows) {
				const size_t offset = size_t(c.n_kv_heads) * from * c.head_dim * sizeof(uint16_t);
				return view(*all_rows.buf, all_rows.at + offset, DType::F16, c.n_kv_heads, m, c.head_dim);
			};
			be_.attend_prompt(rows(r.att, from, m), {}, rows(r.q, from, m),
			                  {part(k), part(v), 0, {}, {}, /*together=*/true}, nullptr);
		}
		runner.project_out(l, r, /*decode=*/false);
		be_.submit();
		if (std::ranges::binary_search(config_.deep, l)) deep.push_back(read_patches());
	}
	norm(x, weights_.post, c.norm, c.norm_eps);
	norm(rows(x, 0, n), weights_.patch_norm, c.norm, c.norm_eps);
	return read_patches();
}

// (rows, merged_dim()): each row is a square of patches.
std::vector<float> ImageEncoder::merged(const std::vector<float>& patches, Grid g) const {
	const uint32_t m = config_.merge, dim = config_.transformer.dim;
	if (m == 1 && !config_.projector->mean_scaled) return patches;
	std::vector<float> out(size_t(g.n() / (m * m)) * config_.merged_dim());
	float* to = out.data();
	for (uint32_t y = 0; y < g.rows; y += m)
		for (uint32_t x = 0; x < g.columns; x += m, to += config_.merged_dim())
			for (uint32_t i = 0; i < m * m; ++i) {
				const float* from = &patches[(size_t(y + i / m) * g.columns + x + i % m) * dim];
				switch (config_.projector->merge) {
				case Merge::Patches: std::copy_n(from, dim, to + size_t(i) * dim); break;
				case Merge::Channels:
					for (uint32_t c = 0; c < dim; ++c) to[size_t(c) * m * m + i] = from[c];
					break;
				case Merge::Mean:
					for (uint32_t c = 0; c < dim; ++c) to[c] += from[c] / float(m * m);
					break;
				case Merge::None: break;
				}
			}
	for (size_t i = 0; i < out.size() && config_.projector->mean_scaled; ++i)
		out[i] = (out[i] - weights_.mean_bias[i % dim]) * weights_.mean_scale[i % dim];
	return out;
}

std::vector<float> ImageEncoder::project(std::span<const StepWeights> steps, const std::vector<float>& from) {
	const uint32_t cols = config_.merged_dim(), n = uint32_t(from.size() / cols);
	uint32_t widest = cols, hidden = 0;
	for (const StepWeights& s : steps) {
		widest = std::max(widest, s.rows);
		if (s.gate) hidden = std::max(hidden, s.gate.shape[0]);
	}
	Buffer memory;
	View now, next, gate, up; // rooms for x in turn
	allocate(be_, memory, "rows of an image", [&](Arena& a) {
		now = a.take(DType::F32, n, widest);
		next = a.take(DType::F32, n, widest);
		if (hidden) gate = a.take(DType::F32, n, hidden), up = a.take(DType::F32, n, hidden);
	});
	View x = shaped(now, n, cols);
	write(be_, x, from);
	be_.at_layer(0);
	const auto multiply = [&](const View& by, const StepWeights& s) {
		x = shaped(next, n, s.rows);
		const Proj p[] = {{x, s.w, s.bias}};
		be_.matmul(p, by, Epilogue::None, /*decode=*/false);
		std::swap(now, next);
	};
	for (const StepWeights& s : steps) {
		switch (s.kind) {
		case Step::Matrix:
		case Step::Turned: multiply(View(x), s); break;
		case Step::LayerNorm: norm(x, s.norm, NormKind::LayerBiased, s.norm_eps); break;
		case Step::RmsNorm:
		case Step::UnitNorm: norm(x, s.norm, NormKind::Rms, s.norm_eps); break;
		case Step::Gelu: be_.activate(x, x, {}, {.function = Activation::GeluTanh}); break;
		case Step::GatedMlp: {
			const View g = shaped(gate, n, s.gate.shape[0]);
			const Proj both[] = {{g, s.gate, {}}, {shaped(up, n, s.gate.shape[0]), s.up, {}}};
			be_.matmul(both, x, Epilogue::SwiGLU, /*decode=*/false);
			multiply(g, s);
			break;
		}
		case Step::End: break;
		}
	}
	std::vector<float> result;
	read(be_, x, result);
	if (std::ranges::any_of(result, [](float v) { return !std::isfinite(v); }))
		fail(Code::Device, "the vision encoder's result is not finite; check its file with kvrun inspect --check, or "
		                   "try --device cpu");
	return result;
}

std::vector<float> ImageEncoder::encode(const Image& tile, std::vector<std::vector<float>>& deep) {
	const Grid g = grid_of(tile);
	const std::vector<float> patches = transform(tile, g, deep);
	for (size_t i = 0; i < deep.size(); ++i) deep[i] = project(weights_.deep[i], merged(deep[i], g));
	std::vector<float> out = project(weights_.projector, merged(patches, g));
	if (!config_.row_ends) return out;
	std::vector<float> all;
	const size_t row = size_t(g.columns / config_.merge) * config_.out_dim;
	for (size_t i = 0; i < out.size(); i += row) {
		if (i) all.insert(all.end(), weights_.row_end.begin(), weights_.row_end.end());
		all.insert(all.end(), out.begin() + ptrdiff_t(i), out.begin() + ptrdiff_t(i + row));
	}
	return all;
}

} // namespace kvrun
