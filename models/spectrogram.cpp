// Spectrograms of sounds.
#include "models/spectrogram.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>

namespace kvrun {
namespace {

struct Shape {
	uint32_t window, fft; // samples of a frame, and with the zeros behind them
	bool slaney, power;
};
constexpr Shape shape_of(Features f) {
	if (f == Features::Log10Mel) return {400, 400, true, true};
	if (f == Features::Log10MelPairs) return {400, 512, false, true};
	return {320, 512, false, false};
}

// Slaney's scale: linear up to 1000 Hz, then logarithmic. HTK's: logarithmic.
constexpr double kLinear = 200. / 3, kBreak = 1000;
const double kLogStep = std::log(6.4) / 27;
double mel_of(double hz, bool slaney) {
	if (!slaney) return 2595 * std::log10(1 + hz / 700);
	return hz < kBreak ? hz / kLinear : kBreak / kLinear + std::log(hz / kBreak) / kLogStep;
}
double hz_of(double mel, bool slaney) {
	if (!slaney) return 700 * (std::pow(10, mel / 2595) - 1);
	const double at = mel - kBreak / kLinear;
	return at < 0 ? mel * kLinear : kBreak * std::exp(at * kLogStep);
}

// Overlapping triangles: weights of the frequencies from `first` on.
struct Band {
	uint32_t first = 0;
	std::vector<float> weights = {};
};
std::vector<Band> mel_bands(const Shape& s, uint32_t bins) {
	std::vector<double> edges(bins + 2);
	const double most = mel_of(kSampleRate / 2., s.slaney);
	for (uint32_t i = 0; i < bins + 2; ++i) edges[i] = hz_of(most * i / (bins + 1), s.slaney);
	std::vector<Band> out(bins);
	for (uint32_t b = 0; b < bins; ++b) {
		const double low = edges[b], middle = edges[b + 1], high = edges[b + 2];
		for (uint32_t k = 0; k <= s.fft / 2; ++k) {
			const double hz = double(k) * kSampleRate / s.fft;
			const double weight = std::min((hz - low) / (middle - low), (high - hz) / (high - middle));
			if (weight <= 0) continue;
			if (out[b].weights.empty()) out[b].first = k;
			out[b].weights.push_back(float(weight * (s.slaney ? 2 / (high - low) : 1)));
		}
	}
	return out;
}

// A discrete Fourier transform of real numbers by its definition: these sizes are small and no powers of two, and an
// encoder multiplies a thousand times as often.
class Transform {
 public:
	explicit Transform(uint32_t n) : half_(n / 2), cos_(half_ * (half_ + 1)), sin_(cos_.size()) {
		for (uint32_t i = 1; i <= half_; ++i)
			for (uint32_t k = 0; k <= half_; ++k) {
				const double angle = 2 * std::numbers::pi * double(uint64_t(i) * k % n) / n;
				cos_[(i - 1) * (half_ + 1) + k] = float(std::cos(angle));
				sin_[(i - 1) * (half_ + 1) + k] = float(std::sin(angle));
			}
	}
	// x: (n); re, im: (n / 2 + 1)
	void run(const float* x, float* re, float* im) const {
		const uint32_t n = half_ + 1;
		std::fill_n(re, n, x[0]);
		std::fill_n(im, n, 0.f);
		for (uint32_t i = 1; i <= half_; ++i) { // sample i and its mirror have the same cosines
			const float mirror = i < half_ ? x[2 * half_ - i] : 0, even = x[i] + mirror, odd = x[i] - mirror;
			const float *c = &cos_[(i - 1) * n], *s = &sin_[(i - 1) * n];
			for (uint32_t k = 0; k < n; ++k) re[k] += even * c[k], im[k] += odd * s[k];
		}
	}

 private:
	uint32_t half_;
	std::vector<float> cos_, sin_; // (n / 2, n / 2 + 1)
};

std::vector<float> hann(uint32_t n) {
	std::vector<float> out(n);
	for (uint32_t i = 0; i < n; ++i) out[i] = float(0.5 - 0.5 * std::cos(2 * std::numbers::pi * i / n));
	return out;
}

void log10_of_power(std::vector<float>& values) {
	for (float& v : values) v = std::log10(std::max(v, 1e-10f));
	const float least = values.empty() ? 0 : *std::ranges::max_element(values) - 8;
	for (float& v : values) v = (std::max(v, least) + 4) / 4;
}

} // namespace

uint32_t frames_of(Features f, uint64_t samples, uint32_t bins) {
	switch (f) {
	case Features::Samples: return uint32_t((samples + bins - 1) / bins);
	case Features::Log10Mel: return uint32_t((samples + kFrameStep - 1) / kFrameStep);
	case Features::Log10MelPairs: return uint32_t((samples / kFrameStep + 1) / 2);
	case Features::LogMel: break;
	}
	// one sample more than a frame has must be there
	const uint32_t least = shape_of(f).window / 2 + 1;
	return samples < least ? 0 : uint32_t((samples - least) / kFrameStep + 1);
}

Spectrogram spectrogram(Features f, std::span<const float> samples, uint32_t bins, uint32_t frames, bool mirrored_end) {
	Spectrogram out{frames, bins, std::vector<float>(size_t(frames) * bins)};
	const bool pairs = f == Features::Log10MelPairs;
	if (pairs) { // the largest value may be in the frame that is left over
		frames = uint32_t(samples.size() / kFrameStep + 1), bins /= 2;
		out.values.resize(std::max(out.values.size(), size_t(frames) * bins));
		mirrored_end = true;
	}
	if (f == Features::Samples) {
		std::copy_n(samples.begin(), std::min(samples.size(), out.values.size()), out.values.begin());
		return out;
	}
	const Shape s = shape_of(f);
	const bool mirrored = f != Features::LogMel;
	const int64_t n = int64_t(samples.size());
	const Transform transform(s.fft);
	const std::vector<Band> bands = mel_bands(s, bins);
	const std::vector<float> window = hann(s.window);
	std::vector<float> x(s.fft), re(s.fft / 2 + 1), im(re.size());
	for (uint32_t t = 0; t < frames; ++t) {
		const int64_t begin = int64_t(t) * kFrameStep - s.window / 2;
		for (uint32_t i = 0; i < s.window; ++i) {
			int64_t at = begin + i;
			if (at < 0 && mirrored) at = -at;
			if (at >= n && mirrored_end) at = 2 * (n - 1) - at;
			x[i] = at >= 0 && at < n ? window[i] * samples[size_t(at)] : 0;
		}
		transform.run(x.data(), re.data(), im.data());
		for (size_t k = 0; k < re.size(); ++k) {
			re[k] = re[k] * re[k] + im[k] * im[k];
			if (!s.power) re[k] = std::sqrt(re[k]);
		}
		for (uint32_t b = 0; b < bins; ++b) {
			double sum = 0;
			for (size_t k = 0; k < bands[b].weights.size(); ++k)
				sum += double(bands[b].weights[k]) * re[bands[b].first + k];
			out.values[size_t(t) * bins + b] = float(sum);
		}
	}
	if (f == Features::LogMel)
		for (float& v : out.values) v = std::log(v + 1e-3f);
	else
		log10_of_power(out.values);
	out.values.resize(size_t(out.frames) * out.bins);
	return out;
}

} // namespace kvrun
