// What the files that choose kernels share: builds of a kernel, vendors, constants of matrix kernels.
#pragma once
#include "backends/vulkan/kernel_choice.h"
#include "shared/spec.h"

namespace kvrun::vk {

constexpr uint32_t kLocal = 128; // invocations of a workgroup: every device allows them
constexpr uint32_t kAmd = 0x1002, kApple = 0x106b, kIntel = 0x8086, kNvidia = 0x10de;

// The build of a kernel with the most needs that all hold in `have` (need::*); shaders/CMakeLists.txt lists the builds.
Kernel build_of(Kernel, uint32_t have);
inline uint32_t texels_of(const Caps& c) { return reads_texels(c) ? need::texels : 0; }
inline uint32_t grid_of(DType t) { return uses_grid(t) ? need::grid : 0; }

// Intel before Xe2: registers have 32 bytes, so a lane of a subgroup of 16 has 64 of them; other GPUs have 128 or more.
inline bool few_registers(const Caps& c) { return c.vendor == kIntel && c.subgroup_min < 16; }

inline void add_matrices(std::vector<SpecValue>& spec, const Caps& c) {
	spec.insert(spec.end(), {{SPEC_SUBGROUP, c.subgroup},
	                         {SPEC_MATRIX_M, c.matrix.m},
	                         {SPEC_MATRIX_N, c.matrix.n},
	                         {SPEC_MATRIX_K, c.matrix.k}});
}

} // namespace kvrun::vk
