// Every use of kernels by ops on a device, to compile them and inspect the compiler's result.
#pragma once
#include "backends/vulkan/kernel_choice.h"

namespace kvrun::vk {

struct KernelUse {
	Kernel kernel;
	std::vector<SpecValue> spec;
	std::string what; // "head_dim 128, f16"
};
// Uses the functions that choose for real ops, with shapes of common models and the formats of all policies.
std::vector<KernelUse> kernel_uses(const Caps&);

} // namespace kvrun::vk
