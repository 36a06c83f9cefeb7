// Every way in which ops use kernels on a device: what compiles to look at the compiler's result.
#pragma once
#include "backends/vulkan/kernel_choice.h"

namespace kvrun::vk {

struct KernelUse {
	Kernel kernel;
	std::vector<SpecValue> spec;
	std::string what; // "head_dim 128, f16"
};
// By the functions that choose for real ops, at the shapes of common models and with the formats of all policies.
std::vector<KernelUse> kernel_uses(const Caps&);

} // namespace kvrun::vk
