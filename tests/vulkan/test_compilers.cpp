// What the compilers of Intel and NVIDIA GPUs in ../shared/vendor make of the kernels, without the hardware: everything
// compiles, nothing spills, and every statistic has a name that kvrun knows. KVRUN_TEST_EVERY=n takes every n-th use.
#include "engine/core/log.h"
#include "tests/support/compare.h"
#include "tests/support/scoped_env.h"
#include "tests/vulkan/kernel_reports.h"
#include "tools/env.h"
#include <cstdlib>
#include <doctest/doctest.h>

using namespace kvrun;

TEST_CASE("compilers: every kernel compiles without spilling, and all statistics are known") {
	const char* chip = std::getenv("KVRUN_TEST_CHIP"); // the only device of the drivers that this program runs on
	REQUIRE_MESSAGE(chip, "started by tests/support/vendor_drivers.sh");
	std::vector<std::string> unknown;
	set_log_sink([&](int, std::string_view line) { unknown.emplace_back(line); }, 1);
	const vk::VulkanDevices devices(options_from_environment());
	REQUIRE(devices.reports().size() == 1);
	MESSAGE(std::string(chip) << ": " << devices.reports()[0].info.name);
	size_t at = 0;
	const std::vector<vk::KernelReport> all = devices.compile_all(0, [&](auto&, auto&) { return row_wanted(at++); });
	set_log_sink({}, 0);
	CHECK(at > 800);
	CHECK(!all.empty());
	for (const std::string& line : faults_of(chip, all)) FAIL_CHECK(line);
	for (const std::string& line : unknown) FAIL_CHECK(line);
}

// Only NVIDIA's hardware leaves bounds to instructions.
TEST_CASE("compilers: on NVIDIA, kernels marked IN_BOUNDS have no bounds checks, others have") {
	const std::string chip = std::getenv("KVRUN_TEST_CHIP");
	if (chip != "ga102") return;
	const auto instructions = [](const char* caps, const char* kernel, std::string_view use) {
		const ScopedEnv clamp("KVRUN_TEST_CAPS", caps);
		const vk::VulkanDevices devices(options_from_environment());
		const auto all = devices.compile_all(0, [&](auto& k, auto& u) { return k == kernel && u == use; });
		REQUIRE(all.size() == 1);
		return all[0].instructions;
	};
	CHECK(instructions("", "matvec", "F16, 1 token") < instructions("pipeline_robustness=0", "matvec", "F16, 1 token"));
	CHECK(instructions("", "embed", "F16") == instructions("pipeline_robustness=0", "embed", "F16"));
}
