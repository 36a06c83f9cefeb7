// Takes rows through the steps of an encoder's projector.
#pragma once
#include "models/encoder_tensors.h"

namespace kvrun {

// from: (n, columns). Rows that join them are left out. mlp_limit: Layer::mlp_limit of gated MLPs. Waits for the
// device. Throws Error{Device} if a result is not finite.
std::vector<float> step_rows(Backend&, std::span<const StepWeights>, const std::vector<float>& from, uint32_t columns,
                             float mlp_limit);

} // namespace kvrun
