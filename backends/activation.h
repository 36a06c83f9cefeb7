// Elementwise activation functions, used by models and backends.
#pragma once
#include <cmath>
#include <cstdint>

namespace kvrun {

enum class Activation : uint8_t { // the values of ACTIVATE_* in shaders/shared/flags.h
	None,
	Silu,      // x / (1 + exp(-x))
	GeluTanh,  // GELU by its approximation with tanh
	Relu2,     // max(x, 0)^2
	Sigmoid,   // 1 / (1 + exp(-x))
	Xielu,     // as in struct Xielu
	GeluQuick, // x / (1 + exp(-1.702 x))
	Clamp,     // min(max(x, low), high), of struct Range
	Softplus,  // log(1 + exp(x))
	Relu,      // max(x, 0)
	Gelu,      // x * the normal distribution's share below x
};
// x > 0: positive * x^2 + linear * x; else negative * (exp(min(x, limit)) - 1 - x) + linear * x. arXiv:2411.13010
struct Xielu {
	float positive = 0, negative = 0, linear = 0, limit = 0;
};

struct Range {
	float low = 0, high = 0;
};

inline double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); } // f32 cannot hold the difference

} // namespace kvrun
