#include "tools/eval/statistics.h"
#include "engine/core/error.h"
#include "engine/core/splitmix64.h"
#include <algorithm>
#include <cmath>
#include <vector>

namespace kvrun {

std::pair<double, double> wilson(uint64_t k, uint64_t n) {
	if (n == 0) return {0, 1};
	constexpr double z = 1.959963984540054; // 97.5 % of a normal distribution lies below
	const double N = double(n), p = double(k) / N, d = 1 + z * z / N;
	const double middle = (p + z * z / (2 * N)) / d, half = z / d * std::sqrt(p * (1 - p) / N + z * z / (4 * N * N));
	return {k == 0 ? 0 : std::max(0.0, middle - half), k == n ? 1 : std::min(1.0, middle + half)};
}

std::pair<double, double> mean_and_error(std::span<const float> x) {
	if (x.empty()) return {0, 0};
	double mean = 0, squares = 0;
	for (const float v : x) mean += double(v) / double(x.size());
	for (const float v : x) squares += (double(v) - mean) * (double(v) - mean);
	return {mean, x.size() < 2 ? 0 : std::sqrt(squares / double(x.size() - 1) / double(x.size()))};
}

double quantile(std::span<const float> x, double p) {
	if (x.empty()) return 0;
	const double at = p * double(x.size() - 1);
	const size_t i = size_t(at), j = std::min(i + 1, x.size() - 1);
	return double(x[i]) + (at - double(i)) * (double(x[j]) - double(x[i]));
}

std::pair<double, double> block_bootstrap(std::span<const float> x, uint32_t stretch) {
	if (x.empty()) return {0, 0};
	KV_ASSERT(stretch > 0 && x.size() % stretch == 0);
	const size_t block = std::min(kBootstrapBlock, stretch), starts = stretch - block + 1;
	std::vector<double> sums; // sum of the block at each possible start
	sums.reserve(x.size() / stretch * starts);
	for (size_t first = 0; first < x.size(); first += stretch)
		for (size_t i = 0; i < starts; ++i) {
			double sum = 0;
			for (const float v : x.subspan(first + i, block)) sum += double(v);
			sums.push_back(sum);
		}
	const size_t blocks = (x.size() + block - 1) / block;
	std::vector<float> means(kBootstrapDraws);
	uint64_t state = 1;
	for (float& mean : means) {
		double sum = 0;
		for (size_t b = 0; b < blocks; ++b) {
			const uint64_t random = splitmix64(state += kSplitmixStep) >> 32;
			sum += sums[size_t(random * sums.size() >> 32)];
		}
		mean = float(sum / double(blocks * block));
	}
	std::ranges::sort(means);
	return {quantile(means, 0.025), quantile(means, 0.975)};
}

} // namespace kvrun
