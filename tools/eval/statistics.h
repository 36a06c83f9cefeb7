// Errors and intervals of what an evaluation measures.
#pragma once
#include <cstdint>
#include <span>
#include <utility>

namespace kvrun {

// 95 % Wilson interval of a share k / n; {0, 1} for n = 0.
std::pair<double, double> wilson(uint64_t k, uint64_t n);

// Mean and its standard error; {0, 0} for nothing, error 0 for one.
std::pair<double, double> mean_and_error(std::span<const float>);

// Value at share p (0 .. 1) of sorted x, interpolated; 0 for nothing.
double quantile(std::span<const float> sorted, double p);

// 95 % interval of the mean of x by the moving-block bootstrap. Neighbouring tokens depend on each other, so blocks of
// kBootstrapBlock of them are drawn. x consists of stretches of `stretch` values, and no block crosses their bounds.
// The same x gives the same interval on every platform. {0, 0} for nothing.
constexpr uint32_t kBootstrapBlock = 16, kBootstrapDraws = 2000;
std::pair<double, double> block_bootstrap(std::span<const float> x, uint32_t stretch);

} // namespace kvrun
