// Runs steps of a vision encoder's projector on a backend.
#pragma once
#include "engine/run/patch_positions.h"
#include "models/vision_weights.h"

namespace kvrun {

// Rows (n, columns) through the steps, but for rows that join them. PatchGrid: of the rows, for Step::Queries. Waits
// for the device. Throws Error{Device} if a result is not finite.
std::vector<float> run_steps(Backend&, const VisionConfig&, std::span<const StepWeights>,
                             const std::vector<float>& rows, uint32_t columns, PatchGrid = {});

} // namespace kvrun
