// Elementwise activation functions, used by models and backends.
#pragma once
#include <cstdint>

namespace kvrun {

enum class Activation : uint8_t { // the values of ACTIVATE_* in shaders/shared/push.h
	None,
	Silu,     // x / (1 + exp(-x))
	GeluTanh, // GELU by its approximation with tanh
	Relu2,    // max(x, 0)^2
	Sigmoid,  // 1 / (1 + exp(-x))
};

} // namespace kvrun
