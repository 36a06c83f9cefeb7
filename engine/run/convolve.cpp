// Convolutions of an audio encoder: matrix products of values that the host lays side by side.
#include "engine/run/convolve.h"
#include "engine/run/arena.h"
#include "engine/run/row_encoder.h"
#include "engine/run/tile_encoder.h"

namespace kvrun {
namespace {

constexpr uint32_t kMostValues = 1 << 23; // that lie side by side at once

// The values that result (t, f) reads: channel after channel, as the weights have their places.
void gather(const ConvolutionWeights& w, const Plane& x, uint32_t t, uint32_t f, float* to) {
	const auto at = [&](int64_t frame, int64_t bin, uint32_t c) {
		const bool inside = frame >= 0 && frame < x.frames && bin >= 0 && bin < x.bins;
		return inside ? x.values[(size_t(frame) * x.bins + size_t(bin)) * x.channels + c] : 0;
	};
	const int64_t frame = int64_t(t) * w.step - 1, bin = int64_t(f) * w.step - 1;
	for (uint32_t c = 0; c < x.channels; ++c)
		for (uint32_t i = 0; i < w.places(); ++i)
			*to++ = !w.plane   ? at(frame + i, 0, c)
			        : w.across ? at(frame + i % 3, bin + i / 3, c)
			                   : at(frame + i / 3, bin + i % 3, c);
}

} // namespace

Plane convolve(Backend& be, const ConvolutionWeights& w, const Plane& x, float norm_eps) {
	KV_ASSERT(x.channels == w.in);
	const auto moved = [&](uint32_t n) { return (n - 1) / w.step + 1; };
	Plane out{moved(x.frames), w.plane ? moved(x.bins) : 1, w.out};
	const uint32_t n = out.frames * out.bins, columns = w.columns(), most = std::min(n, kMostValues / columns + 1);
	Buffer memory;
	View from, to;
	allocate(be, memory, "convolution", [&](Arena& a) {
		from = a.take(DType::F32, most, columns);
		to = a.take(DType::F32, most, w.out);
	});
	be.at_layer(0); // of a split the first device has the encoder
	std::vector<float> side(size_t(most) * columns);
	for (uint32_t first = 0; first < n; first += most) {
		const uint32_t m = std::min(most, n - first);
		for (uint32_t i = 0; i < m; ++i)
			gather(w, x, (first + i) / out.bins, (first + i) % out.bins, &side[size_t(i) * columns]);
		const View read = shaped(from, m, columns), written = shaped(to, m, w.out);
		be.write(*read.buf, read.at, std::as_bytes(std::span(side).first(size_t(m) * columns)));
		const Proj p[] = {{written, w.w, w.bias}};
		be.matmul(p, read, Epilogue::None, /*decode=*/false);
		norm_rows(be, written, w.norm, NormKind::LayerBiased, norm_eps);
		be.activate(written, written, {}, {.function = w.norm.w ? Activation::Relu : Activation::Gelu});
		const std::vector<float> values = read_view(be, written);
		out.values.insert(out.values.end(), values.begin(), values.end());
	}
	return out;
}

} // namespace kvrun
