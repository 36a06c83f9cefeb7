// Runs a tile of an image through the layers of a vision encoder.
#include "engine/run/tile_encoder.h"
#include "engine/run/row_steps.h"
#include <algorithm>
#include <cmath>

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

// Elements of a row that holds a query, and before the first layer pixels of a patch or its position.
static uint32_t row_room(const VisionConfig& v) {
	const Config& c = v.transformer;
	return std::max({c.n_heads * c.head_dim, c.dim, patch_columns(v)});
}

static uint32_t groupings(const VisionConfig& v) { return v.window ? 2 : 1; }

TileEncoder::TileEncoder(Backend& be, const VisionConfig& config, const VisionWeights& weights, const Image& tile,
                         uint32_t most_rows)
    : be_(be), config_(config), weights_(weights), grid_(grid_of(config, tile)), n_(grid_.n()),
      all_(n_ + config.class_tokens), order_(order_of()),
      rows_(std::make_unique<RowEncoder>(be, config.transformer, weights.transformer, all_, row_room(config),
                                         groupings(config), most_rows)),
      most_rows_(most_rows) {
	write_view(be, rows_->rope(0), patch_rotations(config, grid_, order_.patches));
	all_rows_ = rows_->write_groups({0, all_});
	if (config.window) windows_ = rows_->write_groups(order_.begins);
	embed(pixels(tile));
	if (done()) finish();
}

uint64_t TileEncoder::bytes(const VisionConfig& v, uint32_t patches) {
	const uint64_t all = patches + v.class_tokens;
	const uint32_t room = row_room(v);
	return RowEncoder::bytes(v.transformer, all, room, groupings(v)) +
	       (v.limited ? std::min<uint64_t>(all, RowEncoder::kRows) * 4 * room : 0);
}

TileEncoder::Order TileEncoder::order_of() const {
	const PatchGrid g = grid_;
	Order out;
	const uint32_t edge = config_.window ? config_.window : std::max(g.columns, g.rows);
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
		if (!weights_.pixel_norm.empty()) norm_pixels(std::span(out).subspan(size_t(t) * columns, columns));
	}
	return out;
}

// LayerNorm, on the host, because on the device rows of pixels are padded (patch_columns()).
void TileEncoder::norm_pixels(std::span<float> values) const {
	const size_t n = weights_.pixel_norm.size();
	double sum = 0, squares = 0;
	for (size_t i = 0; i < n; ++i) sum += values[i];
	const double mean = sum / double(n);
	for (size_t i = 0; i < n; ++i) squares += (values[i] - mean) * (values[i] - mean);
	const double by = 1 / std::sqrt(squares / double(n) + config_.projector->embedding_eps);
	for (size_t i = 0; i < n; ++i)
		values[i] = float((values[i] - mean) * by) * weights_.pixel_norm[i] + weights_.pixel_bias[i];
}

// (patches, dim), and the class tokens behind them, with what the table has for them.
std::vector<float> TileEncoder::added_rows() const {
	const PatchGrid g = grid_;
	const size_t dim = config_.transformer.dim;
	const std::vector<float>& table = weights_.positions;
	std::vector<float> out(g.n() * dim);
	if (!table.empty()) {
		const std::vector<float> rows = position_rows(config_, table, g);
		for (size_t t = 0; t < g.n(); ++t) std::copy_n(&rows[order_.patches[t] * dim], dim, &out[t * dim]);
	}
	const std::vector<float>& more = weights_.class_tokens;
	const size_t own = config_.projector->table == PositionTable::SquareThenClass ? g.n() * dim : 0;
	const bool placed = config_.table_class_rows() && !table.empty();
	for (size_t i = 0; i < more.size(); ++i) out.push_back(more[i] + (placed ? table[own + i] : 0));
	return out;
}

void TileEncoder::embed(const std::vector<float>& values) {
	const Config& c = config_.transformer;
	const View &x = rows_->x(), patches = rows(x, 0, n_);
	const View pixels = shaped(rows_->q(), n_, patch_columns(config_)), positions = shaped(rows_->att(), all_, c.dim);
	write_view(be_, pixels, values);
	write_view(be_, positions, added_rows());
	be_.at_layer(0); // of a split the first device has the encoder
	const Proj embed[] = {{patches, weights_.patch, weights_.patch_bias}};
	be_.matmul(embed, pixels, Epilogue::None, /*decode=*/false);
	const float own = config_.projector->embedding_eps, eps = own > 0 ? own : c.norm_eps;
	norm_rows(be_, patches, weights_.embedded, c.norm, eps);
	be_.activate(patches, rows(positions, 0, n_), {}, {.add = true});
	if (all_ > n_) be_.copy(rows(x, n_, all_ - n_), rows(positions, n_, all_ - n_));
	norm_rows(be_, x, weights_.pre, c.norm, eps);
}

std::vector<float> TileEncoder::read_patches() {
	const size_t dim = config_.transformer.dim;
	const std::vector<float> values = read_view(be_, rows(rows_->x(), 0, n_));
	std::vector<float> out(values.size());
	for (size_t t = 0; t < n_; ++t) std::copy_n(&values[t * dim], dim, &out[size_t(order_.patches[t]) * dim]);
	return out;
}

// The patches of each window become one: their mean, and what the merger makes of their channels.
void TileEncoder::merge_inner() {
	const uint32_t dim = config_.transformer.dim, m = config_.inner_merge, many = m * m;
	const std::vector<float> patches = read_view(be_, rows_->x()); // windows one after the other
	std::vector<float> rows = run_steps(be_, weights_.inner, patches, many * dim, config_.mlp_limit());
	for (size_t i = 0; i < patches.size(); ++i) rows[i / (many * dim) * dim + i % dim] += patches[i] / float(many);
	grid_ = {grid_.columns / m, grid_.rows / m};
	n_ = all_ = grid_.n();
	order_ = {};
	for (uint32_t i = 0; i < n_; ++i) order_.patches.push_back(i);
	rows_.reset(); // before more memory is taken
	rows_ = std::make_unique<RowEncoder>(be_, config_.transformer, weights_.transformer, n_, row_room(config_), 1,
	                                     most_rows_);
	write_view(be_, rows_->rope(0), patch_rotations(config_, grid_, order_.patches));
	all_rows_ = rows_->write_groups({0, n_});
	write_view(be_, rows_->x(), rows);
}

void TileEncoder::step() {
	KV_ASSERT(!done());
	const uint32_t l = layer_++;
	rows_->run(l, config_.windowed(l) ? windows_ : all_rows_);
	if (config_.inner_merge > 1 && l == config_.inner_layer) merge_inner();
	if (std::ranges::binary_search(config_.deep, l)) deep_.push_back(read_patches());
	if (done()) finish();
}

void TileEncoder::finish() {
	const Config& c = config_.transformer;
	const Projector& p = *config_.projector;
	norm_rows(be_, rows_->x(), weights_.post, c.norm, c.norm_eps);
	norm_rows(be_, rows(rows_->x(), 0, n_), weights_.patch_norm, p.patch_norm_kind,
	          p.patch_norm_eps > 0 ? p.patch_norm_eps : c.norm_eps);
	patches_ = read_patches();
}

} // namespace kvrun
