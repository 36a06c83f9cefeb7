// Standard errors and intervals of measured values.
#pragma once
#include <cstdint>
#include <span>
#include <utility>

namespace kvrun {

// 95 % Wilson interval of a share k / n; {0, 1} for n = 0.
std::pair<double, double> wilson(uint64_t k, uint64_t n);

// Mean and its standard error; {0, 0} without values, error 0 for one value.
std::pair<double, double> mean_and_error(std::span<const float>);

// Quantile p (0 .. 1) of sorted x, interpolated; 0 without values.
double quantile(std::span<const float> sorted, double p);

// 95 % interval of the mean of x by the moving-block bootstrap. Neighbouring tokens are dependent, so blocks of
// kBootstrapBlock tokens are drawn. x consists of stretches of `stretch` values, and no block crosses their borders.
// The same x gives the same interval on every platform. {0, 0} without values.
constexpr uint32_t kBootstrapBlock = 16, kBootstrapDraws = 2000;
std::pair<double, double> block_bootstrap(std::span<const float> x, uint32_t stretch);

} // namespace kvrun
