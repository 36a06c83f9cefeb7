// Runs steps of an encoder's projector on a backend.
#pragma once
#include "engine/run/patch_positions.h"
#include "models/encoder_tensors.h"

namespace kvrun {

// Rows (n, columns) through the steps, but for rows that join them. mlp_limit: Layer::mlp_limit of gated MLPs.
// PatchGrid: of the rows, for Step::Queries. Waits for the device. Throws Error{Device} if a result is not finite.
std::vector<float> run_steps(Backend&, std::span<const StepWeights>, const std::vector<float>& rows, uint32_t columns,
                             float mlp_limit, PatchGrid = {});

} // namespace kvrun
