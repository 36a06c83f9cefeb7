// Runs a tile of an image through the layers of a vision encoder.
#include "engine/run/tile_encoder.h"
#include "engine/run/arena.h"
#include "engine/run/memory_plan.h"
#include <algorithm>

namespace kvrun {

PatchGrid grid_of(const VisionConfig& c, const Image& tile) {
	KV_ASSERT(tile.width % c.align() == 0 && tile.height % c.align() == 0);
	return {tile.width / c.patch, tile.height / c.patch};
}

void norm_rows(Backend& be, const View& x, const NormWeights& w, NormKind kind, float eps) {
	if (!w.w) return;
	if (kind == NormKind::Rms)
		be.rmsnorm(x, x, w.w, eps);
	else
		be.layer_norm(x, x, w.w, w.b, eps);
}

std::vector<float> read_view(Backend& be, const View& from) {
	std::vector<float> out(from.elements());
	be.read(*from.buf, from.at, std::as_writable_bytes(std::span(out)));
	be.submit();
	be.wait();
	return out;
}

// Elements of a row that holds a query, and before the first layer pixels of a patch or its position.
static uint32_t row_room(const VisionConfig& v) {
	const Config& c = v.transformer;
	return std::max({c.n_heads * c.head_dim, c.dim, patch_columns(v)});
}

TileEncoder::TileEncoder(Backend& be, const VisionConfig& config, const VisionWeights& weights, const Image& tile,
                         uint32_t most_rows)
    : be_(be), config_(config), weights_(weights), grid_(grid_of(config, tile)), n_(grid_.n()),
      all_(n_ + (config.class_token ? 1 : 0)), most_rows_(std::min(all_, most_rows)), order_(order_of()), one_{0, all_},
      runner_(be, config.transformer, weights.transformer, most_rows_) {
	const Config& c = config.transformer;
	allocate(be, memory_, "image", [&](Arena& a) {
		x_ = a.take(DType::F32, all_, c.dim);
		q_ = a.take(DType::F32, all_, row_room(config));
		att_ = a.take(DType::F32, all_, row_room(config));
		ids_ = a.take(DType::U32, all_);
		rope_ = a.take(DType::F32, all_, c.head_dim / 2, 2);
		k_ = a.take(DType::F16, c.n_kv_heads, all_, c.head_dim);
		v_ = a.take(DType::F16, c.n_kv_heads, all_, c.head_dim);
		at_ = a.take(DType::U32, all_, c.n_kv_heads, 2);
		if (config.window_period) at_windows_ = a.take(DType::U32, all_, c.n_kv_heads, 2);
	});
	write_view(be, rope_, patch_rotations(config, grid_, order_.patches));
	write_view(be, at_, places(one_));
	if (at_windows_) write_view(be, at_windows_, places(order_.begins));
	embed(pixels(tile));
	q_ = shaped(q_, all_, c.n_heads, c.head_dim), att_ = shaped(att_, all_, c.n_heads, c.head_dim);
}

uint64_t TileEncoder::bytes(const VisionConfig& v, uint32_t patches) {
	Config c = v.transformer;
	const uint64_t all = patches + (v.class_token ? 1 : 0), rows = std::min<uint64_t>(all, kRows);
	const uint64_t kv = uint64_t(c.n_kv_heads) * c.head_dim;
	const uint64_t words = 4 * (c.dim + 2 * uint64_t(row_room(v)) + c.head_dim + 1) + 2 * 2 * kv;
	c.max_seq = uint32_t(rows);
	return all * (words + (v.window_period ? 2 : 1) * 8ull * c.n_kv_heads) + activation_bytes(c, uint32_t(rows)) +
	       (v.limited ? rows * 4 * row_room(v) : 0);
}

TileEncoder::Order TileEncoder::order_of() const {
	const PatchGrid g = grid_;
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
std::vector<float> TileEncoder::pixels(const Image& tile) const {
	const PatchGrid g = grid_;
	const uint32_t edge = config_.patch, columns = patch_columns(config_);
	std::vector<float> out(size_t(g.n()) * columns);
	for (uint32_t t = 0; t < g.n(); ++t) {
		const uint32_t i = order_.patches[t];
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
std::vector<float> TileEncoder::added_rows() const {
	const PatchGrid g = grid_;
	const size_t dim = config_.transformer.dim;
	const std::vector<float>& table = weights_.positions;
	std::vector<float> out(g.n() * dim);
	if (!table.empty()) {
		const std::vector<float> rows = position_rows(config_, table, g);
		for (size_t t = 0; t < g.n(); ++t) std::copy_n(&rows[order_.patches[t] * dim], dim, &out[t * dim]);
	}
	if (!config_.class_token) return out;
	const size_t own = config_.projector->table == PositionTable::SquareThenClass ? g.n() * dim : 0;
	for (size_t i = 0; i < dim; ++i) out.push_back(weights_.class_token[i] + (table.empty() ? 0 : table[own + i]));
	return out;
}

// Where keys and values go: those of windows lie one window after the other.
std::vector<uint32_t> TileEncoder::places(const std::vector<uint32_t>& begins) const {
	const Config& c = config_.transformer;
	std::vector<uint32_t> out;
	for (size_t w = 0; w + 1 < begins.size(); ++w)
		for (uint32_t t = begins[w]; t < begins[w + 1]; ++t)
			for (uint32_t h = 0; h < c.n_kv_heads; ++h) {
				const uint32_t row = c.n_kv_heads * begins[w] + h * (begins[w + 1] - begins[w]) + t - begins[w];
				out.insert(out.end(), 2, row * (c.head_dim / 2));
			}
	return out;
}

void TileEncoder::embed(const std::vector<float>& values) {
	const Config& c = config_.transformer;
	const View patches = rows(x_, 0, n_);
	const View pixels = shaped(q_, n_, patch_columns(config_)), positions = shaped(att_, all_, c.dim);
	write_view(be_, pixels, values);
	write_view(be_, positions, added_rows());
	be_.at_layer(0); // of a split the first device has the encoder
	const Proj embed[] = {{patches, weights_.patch, weights_.patch_bias}};
	be_.matmul(embed, pixels, Epilogue::None, /*decode=*/false);
	norm_rows(be_, patches, weights_.embedded, c.norm, c.norm_eps);
	be_.activate(patches, rows(positions, 0, n_), {}, {.add = true});
	if (all_ > n_) be_.copy(rows(x_, n_, 1), rows(positions, n_, 1));
	norm_rows(be_, x_, weights_.pre, c.norm, c.norm_eps);
}

std::vector<float> TileEncoder::read_patches() {
	const size_t dim = config_.transformer.dim;
	const std::vector<float> values = read_view(be_, rows(x_, 0, n_));
	std::vector<float> out(values.size());
	for (size_t t = 0; t < n_; ++t) std::copy_n(&values[t * dim], dim, &out[size_t(order_.patches[t]) * dim]);
	return out;
}

LayerRows TileEncoder::rows_of(uint32_t layer, uint32_t first) const {
	const uint32_t n = std::min(most_rows_, all_ - first);
	LayerRows r = runner_.rows_of(layer, x_, {ids_, {}}, {rope_}, first, n);
	r.q = rows(q_, first, n), r.att = rows(att_, first, n);
	return r;
}

void TileEncoder::step() {
	KV_ASSERT(!done());
	const Config& c = config_.transformer;
	const uint32_t l = layer_++;
	be_.at_layer(0);
	const bool windowed = config_.windowed(l);
	const std::vector<uint32_t>& begins = windowed ? order_.begins : one_;
	for (uint32_t first = 0; first < all_; first += most_rows_) {
		const LayerRows r = rows_of(l, first);
		runner_.project_in(l, r, /*decode=*/false);
		runner_.rotate(l, r, 0, r.n, {as_words(k_), as_words(v_), rows(windowed ? at_windows_ : at_, first, r.n), 1});
	}
	for (size_t w = 0; w + 1 < begins.size(); ++w) {
		const uint32_t from = begins[w], m = begins[w + 1] - from;
		const auto part = [&](const View& all_rows) {
			const size_t offset = size_t(c.n_kv_heads) * from * c.head_dim * sizeof(uint16_t);
			return view(*all_rows.buf, all_rows.at + offset, DType::F16, c.n_kv_heads, m, c.head_dim);
		};
		be_.attend_prompt(rows(att_, from, m), {}, rows(q_, from, m),
		                  {part(k_), part(v_), 0, {}, {}, /*together=*/true}, nullptr);
	}
	for (uint32_t first = 0; first < all_; first += most_rows_)
		runner_.project_out(l, rows_of(l, first), /*decode=*/false);
	be_.submit();
	if (std::ranges::binary_search(config_.deep, l)) deep_.push_back(read_patches());
	if (!done()) return;
	norm_rows(be_, x_, weights_.post, c.norm, c.norm_eps);
	const Projector& p = *config_.projector;
	norm_rows(be_, rows(x_, 0, n_), weights_.patch_norm, p.patch_norm_rms ? NormKind::Rms : c.norm,
	          p.patch_norm_eps ? p.patch_norm_eps : c.norm_eps);
	patches_ = read_patches();
}

} // namespace kvrun
