// How an image becomes the tiles that a vision encoder reads, by the rules that its model was published with.
#include "models/vision.h"
#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

struct Size {
	uint32_t width, height;
	uint64_t area() const { return uint64_t(width) * height; }
};

uint64_t row_area(const VisionConfig& v) { return uint64_t(v.align()) * v.align(); }

// Sizing::Nearest, and Within.
Size nearest_size(const VisionConfig& v, const Image& image) {
	const uint64_t least = v.least_rows * row_area(v), most = v.most_rows * row_area(v);
	const bool within = v.projector->sizing == Sizing::Within;
	const float longest_edge = float(std::max(image.width, image.height));
	const float by_edge = within ? std::min(float(v.image_size) / longest_edge, 1.f) : 1;
	const float step = float(v.align()), width = float(image.width) * by_edge, height = float(image.height) * by_edge;
	const auto edge = [&](float pixels, auto rounded) {
		return std::max(uint32_t(rounded(pixels / step)), 1u) * v.align();
	};
	// halves: as Python rounds them where that is what a model was published with
	const auto nearest = [&](float x) { return v.projector->stretched ? std::nearbyint(x) : std::round(x); };
	const auto down = [](float x) { return std::floor(x); };
	const auto up = [](float x) { return std::ceil(x); };
	const Size s = within ? Size{edge(std::floor(width), up), edge(std::floor(height), up)}
	                      : Size{edge(width, nearest), edge(height, nearest)};
	if (s.area() > most) {
		const float by = std::sqrt(height * width / float(most));
		return {edge(width / by, down), edge(height / by, down)};
	}
	if (s.area() < least) {
		const float by = std::sqrt(float(least) / (height * width));
		const Size larger{edge(width * by, up), edge(height * by, up)};
		if (larger.area() <= most) return larger; // memory is planned for that much
		return {edge(width * by, down), edge(height * by, down)};
	}
	return s;
}

Size filled_size(const VisionConfig& v, const Image& image) {
	const double most = double(v.most_rows * row_area(v)), step = v.align();
	const double by = std::sqrt(most / (double(image.height) * image.width));
	uint32_t columns = uint32_t(image.width * by / step), rows = uint32_t(image.height * by / step);
	if (!rows) rows = 1, columns = std::min(image.width / image.height, v.most_rows);
	if (!columns) columns = 1, rows = std::min(image.height / image.width, v.most_rows);
	return {columns * v.align(), rows * v.align()};
}

// Of sizes whose shapes are equally near the larger one.
Size shaped_size(const VisionConfig& v, const Image& image) {
	const double shape = double(image.height) / image.width, step = v.align();
	double columns = image.width / step, rows = image.height / step;
	if (columns * rows > v.most_rows) rows = std::sqrt(v.most_rows * shape), columns = rows / shape;
	Size best{};
	double least = INFINITY;
	for (const double y : {std::floor(rows), std::ceil(rows)})
		for (const double x : {std::floor(columns), std::ceil(columns)}) {
			if (x < 1 || y < 1 || x * y > v.most_rows) continue;
			const double far = std::abs(y / x - shape);
			const Size s{uint32_t(x) * v.align(), uint32_t(y) * v.align()};
			if (far < least || (far == least && s.area() > best.area())) best = s, least = far;
		}
	if (best.area()) return best;
	const auto rounded = [&](double n) { return uint32_t(std::clamp(std::nearbyint(n), 1., double(v.most_rows))); };
	return {rounded(columns) * v.align(), rounded(rows) * v.align()};
}

Size canvas_size(const VisionConfig& v, const Image& image) {
	const uint64_t least = v.least_rows * row_area(v), most = v.most_rows * row_area(v), step = v.align();
	const auto up = [&](double pixels) { return uint32_t((uint64_t(std::max(pixels, 1.)) + step - 1) / step * step); };
	Size s{up(image.width), up(image.height)};
	if (s.area() < least) {
		const double by = std::sqrt(double(least) / (double(image.width) * image.height));
		s = {up(std::ceil(image.width * by)), up(std::ceil(image.height * by))};
	}
	if (s.area() <= most) return s;
	s = {v.align(), v.align()};
	for (uint32_t low = 1, high = image.height; low <= high;) { // the height of what the canvas holds
		const uint32_t height = low + (high - low) / 2;
		const Size larger{up(double(uint64_t(image.width) * height / image.height)), up(height)};
		if (larger.area() <= most)
			s = larger, low = height + 1;
		else
			high = height - 1;
	}
	return s;
}

Size free_size(const VisionConfig& v, const Image& image) {
	const auto size = [&]() -> Size {
		switch (v.projector->sizing) {
		case Sizing::Filled: return filled_size(v, image);
		case Sizing::Shape: return shaped_size(v, image);
		case Sizing::Canvas: return canvas_size(v, image);
		case Sizing::Nearest:
		case Sizing::Within: break;
		}
		return nearest_size(v, image);
	};
	const Size s = size();
	// an image far from a square has edges of at least one step
	const uint32_t longest = std::min(v.most_rows, v.table_edge ? v.table_edge / v.merge : v.most_rows) * v.align();
	return {std::min(s.width, longest), std::min(s.height, longest)};
}

Image free_tile(const VisionConfig& v, const Image& image) {
	const Projector& p = *v.projector;
	const Size s = free_size(v, image);
	if (p.stretched) return resized(image, s.width, s.height, p.resample);
	if (p.sizing != Sizing::Canvas) return fitted(image, s.width, s.height, p.resample, p.border);
	double by = std::min(double(s.width) / image.width, double(s.height) / image.height);
	if (uint64_t(image.width) * image.height >= v.least_rows * row_area(v)) by = std::min(by, 1.);
	const auto part = [&](uint32_t pixels, uint32_t most) {
		return std::clamp(uint32_t(std::floor(pixels * by)), 1u, most);
	};
	const Size in{part(image.width, s.width), part(image.height, s.height)};
	return extended(resized(image, in.width, in.height, p.resample), s.width, s.height, p.border);
}

// Parts of an image whose edges are multiples of theirs.
void add_parts(const VisionConfig& v, const Image& image, Size part, TiledImage& out) {
	const Projector& p = *v.projector;
	const uint32_t rows = image.height / part.height, columns = image.width / part.width;
	for (uint32_t y = 0; y < rows; ++y)
		for (uint32_t x = 0; x < columns; ++x) {
			std::string before = numbered(p.tile, {{"row", y + 1}, {"column", x + 1}});
			if (x > 0) before.insert(0, p.tile_between);
			if (x == 0 && y > 0) before.insert(0, p.tile_row_end);
			before.insert(0, x + y > 0 ? p.tile_end : p.grid_begin);
			out.tiles.push_back(
			    {std::move(before), cropped(image, x * part.width, y * part.height, part.width, part.height)});
		}
}
void add_grid(const VisionConfig& v, const Image& image, TiledImage& out) {
	add_parts(v, image, {v.square, v.square}, out);
}
void add_overview(const VisionConfig& v, const Image& from, TiledImage& out) {
	const bool alone = out.tiles.empty();
	const Size s = v.most_rows ? free_size(v, from) : Size{v.square, v.square};
	out.tiles.push_back(
	    {alone ? v.projector->alone : v.projector->overview, resized(from, s.width, s.height, v.projector->resample)});
	out.end = alone ? "" : v.projector->overview_end;
}

// The longest edge is set, the other one follows, then both grow to multiples of a square's. Each step
// works on the result of the one before.
void tile_by_edge(const VisionConfig& v, const Image& image, TiledImage& out) {
	const Resample how = v.projector->resample;
	const uint32_t edge = v.square;
	const uint32_t longest =
	    v.longest_edge ? v.longest_edge : std::min(std::max(image.width, image.height), kMostGridEdge * edge);
	const double ratio = double(image.width) / image.height;
	const auto even = [](double x) { return std::max((uint32_t(x) + 1) / 2 * 2, 2u); };
	const Size s = ratio >= 1 ? Size{longest, even(longest / ratio)} : Size{even(longest * ratio), longest};
	const auto covered = [&](uint32_t n) { return (n + edge - 1) / edge * edge; };
	const Image whole = resized(resized(image, s.width, s.height, how), covered(s.width), covered(s.height), how);
	add_grid(v, whole, out);
	add_overview(v, whole, out);
}

// Of all arrangements the one that keeps most of the image's pixels, of these the one that wastes least.
void tile_by_area(const VisionConfig& v, const Image& image, TiledImage& out) {
	const Projector& p = *v.projector;
	const uint32_t edge = v.square;
	if (std::max(image.width, image.height) > edge) {
		Size best{1, 1};
		int64_t most = 0, least_waste = INT64_MAX;
		for (uint32_t x = v.least_tiles; x <= v.most_tiles; ++x)
			for (uint32_t y = std::max((v.least_tiles + x - 1) / x, v.least_tiles); y <= v.most_tiles / x; ++y) {
				const Size s{x * edge, y * edge};
				const float by = std::min(float(s.width) / float(image.width), float(s.height) / float(image.height));
				const int64_t kept = int64_t(float(image.width) * by) * int64_t(float(image.height) * by),
				              useful = std::min(kept, int64_t(image.width) * image.height),
				              waste = int64_t(s.area()) - useful;
				if (useful > most || (useful == most && waste < least_waste))
					best = {x, y}, most = useful, least_waste = waste;
			}
		add_grid(v, fitted(image, best.width * edge, best.height * edge, p.resample, p.border), out);
	}
	add_overview(v, image, out);
}

// The arrangement whose shape is nearest; of the same shape the larger one, if the image has more than half of its
// pixels.
void add_shaped_grid(const VisionConfig& v, const Image& image, TiledImage& out) {
	const uint32_t edge = v.square;
	const double shape = double(image.width) / image.height, area = double(image.width) * image.height;
	Size best{1, 1};
	double least = INFINITY;
	for (uint32_t n = v.least_tiles; n <= v.most_tiles; ++n)
		for (uint32_t x = 1; x <= n; ++x) {
			if (n % x != 0) continue;
			const double difference = std::abs(shape - double(x) / (n / x));
			if (difference < least || (difference == least && area > 0.5 * edge * edge * n))
				best = {x, n / x}, least = difference;
		}
	add_grid(v, resized(image, best.width * edge, best.height * edge, v.projector->resample), out);
}

void tile_by_ratio(const VisionConfig& v, const Image& image, TiledImage& out) {
	add_shaped_grid(v, image, out);
	if (out.tiles.size() > 1) add_overview(v, image, out);
}

void tile_by_shape(const VisionConfig& v, const Image& image, TiledImage& out) {
	const double step = v.align();
	const auto rounded = [&](uint32_t pixels) {
		return std::max<double>(std::nearbyint(pixels / step) * step, v.patch);
	};
	const double most = double(v.most_rows) * step * step;
	if (v.most_tiles > 1 && rounded(image.width) * rounded(image.height) > 2 * most) add_shaped_grid(v, image, out);
	add_overview(v, image, out);
}

// An image that is smaller than the arrangement stays as large as it is, but for what fills a square.
void tile_by_fit(const VisionConfig& v, const Image& image, TiledImage& out) {
	const Projector& p = *v.projector;
	const uint32_t edge = v.square;
	Size best{};
	float scale = 0; // of the image, to fill it
	for (uint32_t n = 1; n <= v.most_tiles; ++n)
		for (uint32_t x = 1; x <= n; ++x) {
			if (n % x != 0) continue;
			const Size s{x * edge, n / x * edge};
			const float by = std::min(float(s.width) / float(image.width), float(s.height) / float(image.height));
			const bool up = by >= 1, was_up = scale >= 1;
			if (up != was_up ? up : up ? by < scale : by > scale) best = s, scale = by;
		}
	const double width = std::min(std::max(image.width, edge), best.width),
	             height = std::min(std::max(image.height, edge), best.height);
	const double across = width / image.width, down = height / image.height;
	const auto part = [](double pixels, double most) { return std::max(uint32_t(std::min(pixels, most)), 1u); };
	const Size s = across < down ? Size{uint32_t(width), part(image.height * across, height)}
	                             : Size{part(image.width * down, width), uint32_t(height)};
	const Image whole = extended(resized(image, s.width, s.height, p.resample), best.width, best.height, p.border);
	if (best.area() == uint64_t(edge) * edge) {
		out.tiles = {{p.alone, whole}};
		return;
	}
	add_grid(v, whole, out);
	add_overview(v, image, out);
}

// Of as many pixels as a square.
Size slice_size(const VisionConfig& v, Size of) {
	const double shape = double(of.width) / of.height;
	const auto height = double(uint32_t(v.square / std::sqrt(shape))), width = double(uint32_t(height * shape));
	const auto edge = [&](double pixels) { return std::max(uint32_t(std::nearbyint(pixels / v.align())), 1u); };
	const uint32_t across = edge(width), down = edge(height);
	const uint32_t most = v.most_patches() / (v.merge * v.merge); // memory is planned for that much
	return {std::min(across, std::max(most / down, 1u)) * v.align(),
	        std::min(down, std::max(most / across, 1u)) * v.align()};
}

// get_sliced_grid() of MiniCPM-V's processors; {1, 1}: there is none.
Size slice_grid(const VisionConfig& v, const Image& image) {
	const double shape = std::log(double(image.width) / image.height);
	const double squares = double(uint64_t(image.width) * image.height) / (double(v.square) * v.square);
	const uint32_t n = uint32_t(std::min(std::ceil(squares), double(v.most_tiles)));
	Size best{1, 1};
	double least = INFINITY;
	for (uint32_t parts = n - 1; n > 1 && parts <= std::min(n + 1, v.most_tiles); ++parts)
		for (uint32_t rows = 1; rows <= parts; ++rows) {
			if (parts == 1 || parts % rows != 0) continue;
			const double error = std::abs(shape - std::log(double(parts / rows) / rows));
			if (error < least || (error == least && rows > best.height)) best = {parts / rows, rows}, least = error;
		}
	return best;
}

void tile_by_slices(const VisionConfig& v, const Image& image, TiledImage& out) {
	const Projector& p = *v.projector;
	const Size whole = slice_size(v, {image.width, image.height}), grid = slice_grid(v, image);
	out.tiles = {{p.overview, resized(image, whole.width, whole.height, p.resample)}};
	if (grid.area() > 1) {
		const auto part_of = [](uint32_t pixels, uint32_t parts) {
			return std::max(uint32_t(std::nearbyint(double(pixels) / parts)), 1u);
		};
		const Size part = slice_size(v, {part_of(image.width, grid.width), part_of(image.height, grid.height)});
		const Image larger = resized(image, part.width * grid.width, part.height * grid.height, p.resample);
		add_parts(v, larger, part, out);
		out.tiles[1].before.insert(0, p.overview_end);
		out.end = std::string(p.tile_end) + p.grid_end;
	} else {
		out.end = p.overview_end;
	}
}

} // namespace

std::string numbered(std::string text, std::initializer_list<std::pair<std::string_view, uint32_t>> names) {
	for (const auto& [name, n] : names)
		if (const size_t at = text.find(fmt::format("{{{}}}", name)); at != text.npos)
			text.replace(at, name.size() + 2, std::to_string(n));
	return text;
}

TiledImage tile_image(const VisionConfig& v, const Image& image) {
	const Projector& p = *v.projector;
	TiledImage out;
	switch (p.tiling) {
	case Tiling::Square:
		out.tiles = {{"", p.stretched ? resized(image, v.image_size, v.image_size, p.resample)
		                              : fitted(image, v.image_size, v.image_size, p.resample, p.border)}};
		break;
	case Tiling::Free: out.tiles = {{"", free_tile(v, image)}}; break;
	case Tiling::GridByEdge: tile_by_edge(v, image, out); break;
	case Tiling::GridByArea: tile_by_area(v, image, out); break;
	case Tiling::GridByShape: tile_by_shape(v, image, out); break;
	case Tiling::GridByRatio: tile_by_ratio(v, image, out); break;
	case Tiling::GridByFit: tile_by_fit(v, image, out); break;
	case Tiling::Slices: tile_by_slices(v, image, out); break;
	}
	out.tiles[0].before.insert(0, p.begin);
	out.end += p.end;
	return out;
}

} // namespace kvrun
