// From rows of an encoder to rows of the model: the steps of a projector, as llama.cpp's mmproj files describe them.
#pragma once
#include "backends/activation.h"
#include <array>
#include <cstdint>

namespace kvrun {

struct Step {
	enum Kind : uint8_t {
		End,
		Matrix, // and a bias, if the file has one
		Turned, // a matrix that lies transposed in the file
		LayerNorm,
		RmsNorm,
		UnitNorm, // RMS norm without weights
		Activate, // by `function`
		GatedMlp, // down(silu(gate) * up); the names of the three matrices begin with `tensor`
		Halves,   // a matrix whose result becomes first half * silu(second half)
		Stack,    // neighbouring rows become one (AudioConfig::stack)
		// Attention of learned queries to the rows, in heads of kQueryHead channels; keys have sines and cosines of
		// their places. There are as many rows behind it as queries. Names of tensors begin with `tensor`.
		Queries,
		// Rows that join those of patches and pass the steps behind this one; `tensor` is the whole name.
		Between, // one behind each line of rows but the last
		Behind,  // one behind each line of rows
		First,   // one before all others
		Last,    // one behind all others
	} kind = End;
	const char* tensor = ""; // in the file, without ".weight"
	bool optional = false;   // left out where the file has no such tensor
	Activation function = Activation::GeluTanh;
	bool joins() const { return kind >= Between; }
};
using Steps = std::array<Step, 9>;
constexpr uint32_t kQueryHead = 128;

} // namespace kvrun
