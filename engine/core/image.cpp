// Images in memory, and how their size is changed.
#include "engine/core/image.h"
#include "engine/core/error.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvrun {
namespace {

constexpr int kWeightBits = 22; // 32 bits, less 8 of a pixel and 2 for sums above it

double support_of(Resample r) { return r == Resample::Bilinear ? 1 : r == Resample::Bicubic ? 2 : 3; }

double weight_at(Resample r, double x) { // x: distance from the centre, in pixels of the coarser image
	x = std::abs(x);
	if (x >= support_of(r)) return 0;
	if (r == Resample::Bilinear) return 1 - x;
	if (r == Resample::Bicubic) { // Keys' kernel with a = -0.5
		constexpr double a = -0.5;
		return x < 1 ? ((a + 2) * x - (a + 3)) * x * x + 1 : (((x - 5) * x + 8) * x - 4) * a;
	}
	const auto sinc = [](double v) { return v == 0 ? 1 : std::sin(std::numbers::pi * v) / (std::numbers::pi * v); };
	return sinc(x) * sinc(x / 3);
}

struct Taps { // of one pixel of the result
	uint32_t first;
	std::vector<int32_t> weights;
};

std::vector<Taps> taps_of(uint32_t from, uint32_t to, Resample r) {
	const double scale = double(from) / to, widening = std::max(scale, 1.0), support = support_of(r) * widening;
	std::vector<Taps> out(to);
	std::vector<double> w;
	for (uint32_t i = 0; i < to; ++i) {
		const double centre = (i + 0.5) * scale;
		const uint32_t first = uint32_t(std::max(centre - support + 0.5, 0.0)),
		               end = std::min(uint32_t(centre + support + 0.5), from);
		w.clear();
		double sum = 0;
		for (uint32_t x = first; x < end; ++x) {
			w.push_back(weight_at(r, (x - centre + 0.5) / widening));
			sum += w.back();
		}
		out[i].first = first;
		for (const double x : w) {
			const double scaled = (sum != 0 ? x / sum : x) * (1 << kWeightBits);
			out[i].weights.push_back(int32_t(scaled < 0 ? scaled - 0.5 : scaled + 0.5));
		}
	}
	return out;
}

// Result pixel i of each of n lines; pixels of a line are `step` bytes apart, lines `line_step`.
void filter(const std::vector<Taps>& taps, const uint8_t* from, size_t from_step, size_t from_line, uint8_t* to,
            size_t to_step, size_t to_line, uint32_t lines) {
	for (size_t i = 0; i < taps.size(); ++i)
		for (uint32_t line = 0; line < lines; ++line) {
			int32_t sum[3] = {1 << (kWeightBits - 1), 1 << (kWeightBits - 1), 1 << (kWeightBits - 1)};
			const uint8_t* p = from + line * from_line + taps[i].first * from_step;
			for (const int32_t w : taps[i].weights) {
				for (int c = 0; c < 3; ++c) sum[c] += p[c] * w;
				p += from_step;
			}
			uint8_t* q = to + line * to_line + i * to_step;
			for (int c = 0; c < 3; ++c) q[c] = uint8_t(std::clamp(sum[c] >> kWeightBits, 0, 255));
		}
}

} // namespace

Image::Image(uint32_t w, uint32_t h, Rgb colour) : Image(w, h) {
	for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = colour[i % 3];
}

Image resized(const Image& image, uint32_t width, uint32_t height, Resample r) {
	KV_ASSERT(image.width && image.height && width && height);
	const Image* from = &image;
	Image wide, out;
	if (width != image.width) {
		wide = Image(width, image.height);
		filter(taps_of(image.width, width, r), image.rgb.data(), 3, size_t(image.width) * 3, wide.rgb.data(), 3,
		       size_t(width) * 3, image.height);
		from = &wide;
	}
	if (height == image.height) return *from;
	out = Image(width, height);
	filter(taps_of(image.height, height, r), from->rgb.data(), size_t(width) * 3, 3, out.rgb.data(), size_t(width) * 3,
	       3, width);
	return out;
}

namespace {

// With the inner image at (x, y).
Image around(const Image& inner, uint32_t x, uint32_t y, uint32_t width, uint32_t height, Rgb colour) {
	KV_ASSERT(x + inner.width <= width && y + inner.height <= height);
	Image out(width, height, colour);
	for (uint32_t row = 0; row < inner.height; ++row)
		std::copy_n(inner.rgb.begin() + ptrdiff_t(size_t(row) * inner.width * 3), size_t(inner.width) * 3,
		            out.rgb.begin() + ptrdiff_t((size_t(y + row) * width + x) * 3));
	return out;
}

} // namespace

Image extended(const Image& image, uint32_t width, uint32_t height, Rgb colour) {
	return around(image, 0, 0, width, height, colour);
}

Image fitted(const Image& image, uint32_t width, uint32_t height, Resample r, Rgb colour) {
	const float scale = std::min(float(width) / float(image.width), float(height) / float(image.height));
	const auto side = [&](uint32_t from, uint32_t most) {
		return std::clamp(uint32_t(std::ceil(float(from) * scale)), 1u, most);
	};
	const Image inner = resized(image, side(image.width, width), side(image.height, height), r);
	return around(inner, (width - inner.width) / 2, (height - inner.height) / 2, width, height, colour);
}

Image cropped(const Image& image, uint32_t x, uint32_t y, uint32_t width, uint32_t height) {
	KV_ASSERT(x + width <= image.width && y + height <= image.height);
	Image out(width, height);
	for (uint32_t row = 0; row < height; ++row)
		std::copy_n(image.rgb.begin() + ptrdiff_t((size_t(y + row) * image.width + x) * 3), size_t(width) * 3,
		            out.rgb.begin() + ptrdiff_t(size_t(row) * width * 3));
	return out;
}

} // namespace kvrun
