// Values of small tensors on the host, and matrices of values on a backend.
#pragma once
#include "backends/backend.h"
#include "models/gguf.h"
#include <vector>

namespace kvrun {

// All elements as f32, row after row. Throws Error{Io}; Format if one is not finite.
std::vector<float> tensor_values(const Gguf&, const GgufTensor&);
// Writes values (rows, cols) into a weight of type F32 or F16, in pieces; waits only where staging memory is short.
void write_values(Backend&, const View& weight, const std::vector<float>& values);
// Copies a tensor's rows from `first` on into a weight of the same type, as many as it has, likewise.
// order: if not empty, row i of the weight is row first + order[i].
void write_tensor(Backend&, const View& weight, const Gguf&, const GgufTensor&, uint32_t first = 0,
                  std::span<const uint32_t> order = {});

} // namespace kvrun
