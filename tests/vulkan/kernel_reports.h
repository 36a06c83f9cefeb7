// Checks of every kernel by the compiler tests: it compiles, the driver reports statistics, nothing spills.
#pragma once
#include "backends/vulkan/open_vulkan.h"
#include <fmt/format.h>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace kvrun {

inline std::string key(const std::string& chip, const vk::KernelReport& k) {
	return chip + " " + k.kernel + " " + k.use;
}

// Errors regardless of the driver's version. may_spill: registers of a use that may spill.
inline std::vector<std::string> faults_of(
    const std::string& chip, const std::vector<vk::KernelReport>& all,
    const std::function<uint32_t(const vk::KernelReport&)>& may_spill = [](const auto&) { return 0; }) {
	std::vector<std::string> out;
	std::map<std::string, int> seen;
	for (const vk::KernelReport& k : all) {
		const std::string name = key(chip, k);
		if (!k.error.empty())
			out.push_back(fmt::format("{}: {}", name, k.error));
		else if (!k.measured || !k.code_bytes)
			out.push_back(fmt::format("{}: the driver gives no numbers", name));
		if (k.spilling() && (!k.spills || k.spills > may_spill(k)))
			out.push_back(fmt::format("{}: spills {} registers, {} bytes of scratch", name, k.spills, k.scratch_bytes));
		if (++seen[name] == 2) out.push_back(fmt::format("{}: two uses have this name", name));
	}
	return out;
}

} // namespace kvrun
