// VK_KHR_cooperative_matrix: the matrix products that a device has, and what VK_NV_cooperative_matrix2 adds. Debian
// 12's Vulkan headers are older than both, so their structures are declared here.
#pragma once
#include "backends/vulkan/vk.h"

namespace kvrun::vk {

inline constexpr char kMatrixExtension[] = "VK_KHR_cooperative_matrix";

struct MatrixFeatures { // VkPhysicalDeviceCooperativeMatrixFeaturesKHR
	VkStructureType sType = VkStructureType(1000506000);
	void* pNext = nullptr;
	VkBool32 cooperativeMatrix = VK_FALSE, cooperativeMatrixRobustBufferAccess = VK_FALSE;
};

inline constexpr char kMatrixRowsExtension[] = "VK_NV_cooperative_matrix2";

struct MatrixRowsFeatures { // VkPhysicalDeviceCooperativeMatrix2FeaturesNV
	VkStructureType sType = VkStructureType(1000593000);
	void* pNext = nullptr;
	VkBool32 workgroupScope = VK_FALSE, flexibleDimensions = VK_FALSE, reductions = VK_FALSE, conversions = VK_FALSE,
	         perElementOperations = VK_FALSE, tensorAddressing = VK_FALSE, blockLoads = VK_FALSE;
	// Those that kvrun uses: shaders/lib/matrix_rows.glsl.
	bool suffice() const { return reductions && conversions && perElementOperations; }
};

struct MatrixShape { // (m, k) x (k, n) + (m, n); m = 0: none
	uint32_t m = 0, n = 0, k = 0;
	explicit operator bool() const { return m > 0; }
};
// The largest shape for f16 x f16 + f32 in one subgroup that fits a tile of 32 rows, columns and depth; m = 0 if there
// is none.
MatrixShape best_matrix_shape(VkInstance, VkPhysicalDevice);

} // namespace kvrun::vk
