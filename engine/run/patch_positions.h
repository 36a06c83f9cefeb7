// Positions of patches in a vision encoder: what is added to them, and the rotations of their queries and keys.
#pragma once
#include "models/vision.h"
#include <span>
#include <vector>

namespace kvrun {

struct PatchGrid {
	uint32_t columns, rows;
	uint32_t n() const { return columns * rows; }
};
// (patches, dim) in the image's order, from the file's table, which is not empty: VisionConfig::projector->table.
std::vector<float> position_rows(const VisionConfig&, std::span<const float> table, PatchGrid);
// (patches, and the class token behind them; head_dim / 2, 2): cos and sin, of patches in this order.
std::vector<float> patch_rotations(const VisionConfig&, PatchGrid, std::span<const uint32_t> order);

// (patches, dim): the first half of a row tells the column, the second the line, each as sines, then cosines.
std::vector<float> sine_positions(PatchGrid, uint32_t dim);

} // namespace kvrun
