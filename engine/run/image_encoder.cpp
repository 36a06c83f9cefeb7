// Runs a vision encoder on a backend.
#include "engine/run/image_encoder.h"
#include "engine/run/row_steps.h"
#include <algorithm>
#include <cmath>

namespace kvrun {

ImageEncoder::ImageEncoder(Backend& be, const Gguf& file, VisionConfig config)
    : be_(be), config_(std::move(config)), weights_(load_vision(file, config_, be)) {
	const std::span<const StepWeights> steps = weights_.projector;
	for (size_t i = 0; i < steps.size(); ++i) {
		if (steps[i].kind < Step::Between) continue;
		std::vector<float>& to = steps[i].kind == Step::First  ? first_
		                         : steps[i].kind == Step::Last ? last_
		                                                       : line_end_;
		to = run_steps(be_, steps.subspan(i + 1), steps[i].row, steps[i].rows, config_.mlp_limit());
	}
}

double ImageEncoder::work(const Image& tile) const {
	const Config& c = config_.transformer;
	const double n = grid_of(config_, tile).n(), dim = c.dim, heads = double(c.n_heads) * c.head_dim;
	return n * 2 * dim * patch_columns(config_) +
	       c.n_layers * n * (2 * dim * (4 * heads + 3. * c.hidden_dim) + 4 * heads * n);
}

// (rows, merged_dim()): each row is a square of patches.
std::vector<float> ImageEncoder::merged(const std::vector<float>& patches, PatchGrid g) const {
	const uint32_t m = config_.last_merge(), dim = config_.transformer.dim;
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

std::unique_ptr<TileEncoder> ImageEncoder::begin(const Image& tile, uint32_t most_rows) {
	return std::make_unique<TileEncoder>(be_, config_, weights_, tile, most_rows);
}

TileRows ImageEncoder::finish(const TileEncoder& tile) {
	const PatchGrid g = tile.grid();
	TileRows out;
	for (size_t i = 0; i < tile.deep().size(); ++i)
		out.deep.push_back(
		    run_steps(be_, weights_.deep[i], merged(tile.deep()[i], g), config_.merged_dim(), config_.mlp_limit()));
	out.rows =
	    run_steps(be_, weights_.projector, merged(tile.patches(), g), config_.merged_dim(), config_.mlp_limit(), g);
	if (config_.line_ends || config_.framed) out.rows = joined(out.rows, g.columns / config_.last_merge());
	return out;
}

std::vector<float> ImageEncoder::joined(const std::vector<float>& rows, uint32_t line) const {
	std::vector<float> all = first_;
	const auto add = [&](std::span<const float> more) { all.insert(all.end(), more.begin(), more.end()); };
	const size_t step = size_t(line) * config_.out_dim;
	for (size_t i = 0; i < rows.size(); i += step) {
		add(std::span(rows).subspan(i, step));
		if (config_.last_line_ends || i + step < rows.size()) add(line_end_);
	}
	add(last_);
	return all;
}

TileRows ImageEncoder::encode(const Image& image) {
	const auto tile = begin(image);
	while (!tile->done()) tile->step();
	return finish(*tile);
}

} // namespace kvrun
