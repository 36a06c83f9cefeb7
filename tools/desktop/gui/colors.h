// Colours that mean the same everywhere in the window.
#pragma once
#include <cstdint>
#include <imgui.h>
#include <string>

namespace kvrun::desktop {

// By kvrun_tier: f16, salient, regular, evicted; told apart by the colour-blind, too.
constexpr ImU32 kTierColors[] = {IM_COL32(86, 160, 233, 255), IM_COL32(230, 159, 0, 255), IM_COL32(0, 158, 115, 255),
                                 IM_COL32(90, 60, 64, 255)};
constexpr ImU32 kParamColor = IM_COL32(204, 121, 167, 255), kOverheadColor = IM_COL32(130, 130, 140, 255),
                kWeightColor = IM_COL32(120, 110, 200, 255), kWorkColor = IM_COL32(160, 150, 110, 255),
                kFreeColor = IM_COL32(40, 44, 52, 255), kTooMuchColor = IM_COL32(213, 60, 50, 255);

std::string human_size(uint64_t bytes); // "1.5 MiB"

} // namespace kvrun::desktop
