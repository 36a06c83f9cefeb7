// Positions of patches in a vision encoder.
#include "engine/run/patch_positions.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

struct Tap { // of one direction of a table
	uint32_t place;
	float share;
};
using Taps = std::vector<Tap>;

// What place i of n takes of a table with `side` places.
// Linear between the two neighbours of a place in 0 .. side - 1.
Taps between(float at, uint32_t side) {
	const auto low = std::min(uint32_t(at), side - 1);
	const float share = at - float(low);
	return {{low, 1 - share}, {std::min(low + 1, side - 1), share}};
}
Taps corners(uint32_t i, uint32_t n, uint32_t side) {
	return between(n > 1 ? float(i) * float(side - 1) / float(n - 1) : 0, side);
}
Taps bilinear(uint32_t i, float n, uint32_t side) {
	return between(std::max((float(i) + 0.5f) * float(side) / n - 0.5f, 0.f), side);
}

// With zeros around the table.
Taps zero_edged(uint32_t i, uint32_t n, uint32_t side) {
	const float at = (float(i) + 0.5f) * float(side) / float(n) - 0.5f, low = std::floor(at), share = at - low;
	Taps out;
	if (low >= 0) out.push_back({uint32_t(low), 1 - share});
	if (low + 1 < float(side)) out.push_back({uint32_t(low + 1), share});
	return out;
}

Taps antialiased(uint32_t i, uint32_t n, uint32_t side) {
	const float scale = float(side) / float(n), support = std::max(scale, 1.f);
	const float centre = (float(i) + 0.5f) * scale - 0.5f;
	Taps out;
	float sum = 0;
	for (uint32_t place = 0; place < side; ++place)
		if (const float share = 1 - std::abs(float(place) - centre) / support; share > 0)
			out.push_back({place, share}), sum += share;
	for (Tap& t : out) t.share /= sum;
	return out;
}

Taps bicubic(uint32_t i, uint32_t n, uint32_t side) {
	constexpr float a = -0.75f;
	const auto near = [](float x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
	const auto far = [](float x) { return a * (((x - 5) * x + 8) * x - 4); };
	const float at = (float(i) + 0.5f) * float(side) / float(n) - 0.5f, low = std::floor(at), share = at - low;
	const auto place = [&](float x) { return uint32_t(std::clamp(x, 0.f, float(side - 1))); };
	return {{place(low - 1), far(share + 1)},
	        {place(low), near(share)},
	        {place(low + 1), near(1 - share)},
	        {place(low + 2), far(2 - share)}};
}

Taps taps(PositionTable table, uint32_t i, uint32_t n, uint32_t side) {
	switch (table) {
	case PositionTable::Corners: return corners(i, n, side);
	case PositionTable::Antialiased: return antialiased(i, n, side);
	case PositionTable::Bicubic: return bicubic(i, n, side);
	case PositionTable::Bilinear: return bilinear(i, float(n), side);
	case PositionTable::BilinearTenth: return bilinear(i, float(n) + 0.1f, side);
	case PositionTable::BilinearAcross: return zero_edged(i, n, side);
	case PositionTable::Nearest: return {{uint32_t(uint64_t(i) * side / n), 1}};
	default: return {{i, 1}};
	}
}

} // namespace

std::vector<float> position_rows(const VisionConfig& c, std::span<const float> table, PatchGrid g) {
	const size_t dim = c.transformer.dim;
	const PositionTable kind = c.projector->table;
	std::vector<float> out(g.n() * dim);
	const auto add = [&](size_t patch, size_t row, float share) {
		for (size_t k = 0; k < dim; ++k) out[patch * dim + k] += share * table[row * dim + k];
	};
	if (kind == PositionTable::ColumnAndLine) {
		for (uint32_t i = 0; i < g.n(); ++i) add(i, i % g.columns, 1), add(i, c.table_edge + i / g.columns, 1);
		return out;
	}
	const uint32_t side = c.table_side, first = kind == PositionTable::Square ? c.class_tokens : 0;
	if (kind == PositionTable::BilinearAcross) std::swap(g.columns, g.rows);
	std::vector<Taps> across, down;
	for (uint32_t x = 0; x < g.columns; ++x) across.push_back(taps(kind, x, g.columns, side));
	for (uint32_t y = 0; y < g.rows; ++y) down.push_back(taps(kind, y, g.rows, side));
	for (uint32_t i = 0; i < g.n(); ++i)
		for (const Tap& y : down[i / g.columns])
			for (const Tap& x : across[i % g.columns])
				add(i, first + size_t(y.place) * side + x.place, y.share * x.share);
	return out;
}

std::vector<float> patch_rotations(const VisionConfig& c, PatchGrid g, std::span<const uint32_t> order) {
	const uint32_t pairs = c.transformer.head_dim / 2, n = g.n() + c.class_tokens;
	const PatchRotation& r = c.projector->rotation;
	std::vector<float> out(size_t(n) * pairs * 2);
	for (uint32_t t = 0; t < n; ++t)
		for (uint32_t i = 0; i < pairs; ++i) {
			double angle = 0;
			if (r.pairs != PatchRotation::None && t < g.n()) {
				const bool alternately = r.by == PatchRotation::ColumnAndLine;
				const bool second = alternately ? i % 2 : i >= pairs / 2;
				const uint32_t k = alternately ? i / 2 : second ? i - pairs / 2 : i;
				const bool by_line = second != (r.by == PatchRotation::LineThenColumn);
				const uint32_t at = by_line ? order[t] / g.columns : order[t] % g.columns;
				const double exponent = double(2 * k + (r.odd && second)) / pairs;
				angle = (at + r.first) * std::pow(double(r.theta), -exponent);
			}
			out[(size_t(t) * pairs + i) * 2] = float(std::cos(angle));
			out[(size_t(t) * pairs + i) * 2 + 1] = float(std::sin(angle));
		}
	return out;
}

std::vector<float> sine_positions(PatchGrid g, uint32_t dim) {
	const uint32_t quarter = dim / 4;
	std::vector<float> out(size_t(g.n()) * dim);
	for (uint32_t t = 0; t < g.n(); ++t)
		for (uint32_t i = 0; i < dim; ++i) {
			const uint32_t at = i < dim / 2 ? t % g.columns : t / g.columns, k = i % (dim / 2);
			const double angle = at * std::pow(10000., -double(k % quarter) / quarter);
			out[size_t(t) * dim + i] = float(k < quarter ? std::sin(angle) : std::cos(angle));
		}
	return out;
}

} // namespace kvrun
