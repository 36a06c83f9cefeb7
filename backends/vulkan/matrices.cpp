// Which products of cooperative matrices a device has.
#include "backends/vulkan/matrices.h"
#include <bit>
#include <tuple>
#include <vector>

namespace kvrun::vk {
namespace {

struct Properties { // VkCooperativeMatrixPropertiesKHR
	VkStructureType sType = VkStructureType(1000506001);
	void* pNext = nullptr;
	uint32_t m = 0, n = 0, k = 0;
	int32_t a = 0, b = 0, c = 0, result = 0; // VkComponentTypeKHR
	VkBool32 saturating = VK_FALSE;
	int32_t scope = 0; // VkScopeKHR
};
constexpr int32_t kFloat16 = 0, kFloat32 = 1, kSubgroup = 3;
using GetProperties = VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*, Properties*);

bool fits(const Properties& p) {
	const auto in_tile = [](uint32_t x) { return std::has_single_bit(x) && x >= 4 && x <= 32; };
	return p.a == kFloat16 && p.b == kFloat16 && p.c == kFloat32 && p.result == kFloat32 && p.scope == kSubgroup &&
	       !p.saturating && in_tile(p.m) && in_tile(p.n) && in_tile(p.k);
}

} // namespace

MatrixShape best_matrix_shape(VkInstance instance, VkPhysicalDevice device) {
	const auto get = reinterpret_cast<GetProperties>(
	    vkGetInstanceProcAddr(instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR"));
	uint32_t count = 0;
	if (!get || get(device, &count, nullptr) != VK_SUCCESS) return {};
	std::vector<Properties> all(count);
	if (get(device, &count, all.data()) != VK_SUCCESS) return {};
	const auto rank = [](const auto& s) { return std::tuple(s.m * s.n * s.k, s.m == s.n); };
	MatrixShape best;
	for (const Properties& p : all)
		if (fits(p) && rank(p) > rank(best)) best = {p.m, p.n, p.k};
	return best;
}

} // namespace kvrun::vk
