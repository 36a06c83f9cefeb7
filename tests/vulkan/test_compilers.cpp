// The results of the compilers for Intel, NVIDIA and AMD GPUs in ../shared/vendor, without the hardware: every kernel
// compiles, nothing spills, kvrun knows the name of every statistic, and registers and cycles match shaders/baselines.
// KVRUN_TEST_EVERY=n compiles the first use of each kernel and one n-th of the others; baselines are for n = 11. For
// Intel's Xe2, Mesa 26.1 estimates the cycles of some kernels in one of several ways, which varies by process with the
// same registers. lnl.txt has the highest estimates of ten processes (KVRUN_TEST_RECORD=max).
#include "engine/core/log.h"
#include "tests/support/scoped_env.h"
#include "tests/vulkan/baseline.h"
#include "tools/env.h"
#include <cstdlib>
#include <doctest/doctest.h>
#include <xxhash.h>

using namespace kvrun;

namespace {

// Registers that a use may spill. Prompts with wide heads by matrices: sums of 128 channels of 16 rows, and the
// queries, take 96 of the 128 registers of a lane (a workgroup of 512 lanes, NVIDIA); NVK then spills up to 24
// addresses. ANV spills constants that are needed behind the loop.
uint32_t may_spill(const vk::KernelReport& k) {
	const bool matrices = k.kernel == "attend_matrix" || k.kernel == "attend_prompt_matrix";
	const bool wide = k.use.find("head_dim 256") != k.use.npos || k.use.find("head_dim 512") != k.use.npos;
	const bool nvidia = std::getenv("KVRUN_TEST_CHIP") == std::string_view("ga102");
	return matrices && wide ? nvidia ? 24 : 3 : 0;
}

} // namespace

TEST_CASE("compilers: every kernel compiles without spilling, with known statistics and the registers and cycles of "
          "the baseline") {
	const char* given = std::getenv("KVRUN_TEST_CHIP"); // the only device of the drivers under which this program runs
	REQUIRE_MESSAGE(given, "started by tests/support/vendor_drivers.sh");
	const std::string chip = given, test = "compilers." + chip;
	constexpr unsigned long long kCompared = 11;
	const char* every = std::getenv("KVRUN_TEST_EVERY");
	const auto n = std::max(every ? std::strtoull(every, nullptr, 10) : 1, 1ull);
	std::vector<std::string> unknown;
	set_log_sink([&](int, std::string_view line) { unknown.emplace_back(line); }, 1);
	const vk::VulkanDevices devices(options_from_environment());
	REQUIRE(devices.reports().size() == 1);
	const auto& device = devices.reports()[0];
	MESSAGE(chip << ": " << device.info.name);
	size_t uses = 0;
	std::set<std::string> kernels;
	std::ifstream file(baseline_file(chip));
	const Baseline baseline = file.good() ? read_baseline(file) : Baseline();
	KeptUses kept(baseline, chip);
	// By name, so that a new use does not change which others are compiled.
	const auto wanted = [&](const std::string& kernel, const std::string& use) {
		++uses;
		const std::string name = kernel + " " + use;
		const bool compared = kernels.insert(kernel).second || XXH3_64bits(name.data(), name.size()) % n == 0;
		return compared && (!KeptUses::asked() || kept.wants(kernel, use));
	};
	const std::vector<vk::KernelReport> all = devices.compile_all(0, wanted);
	set_log_sink({}, 0);
	CHECK(uses > 800);
	CHECK((!all.empty() || KeptUses::asked()));
	for (const std::string& line : faults_of(chip, all, may_spill)) FAIL_CHECK(line);
	for (const std::string& line : unknown) FAIL_CHECK(line);
	if (n != kCompared) return;
	if (std::getenv("KVRUN_TEST_RECORD"))
		return record_baseline(chip, test, device.info.driver, {{chip, KeptUses::asked() ? kept.with(all) : all}});
	REQUIRE_MESSAGE(!baseline.driver.empty(),
	                "no baseline of " << chip << "; any other KVRUN_TEST_EVERY looks for spills only");
	if (device.info.driver != baseline.driver) {
		MESSAGE(chip << ": registers and cycles are not compared, only spills: the baseline is of '" << baseline.driver
		             << "', this driver is '" << device.info.driver << "'; to compare from here on, "
		             << how_to_record(test));
		return;
	}
	for (const std::string& line : compare_with(baseline, chip, all))
		FAIL_CHECK(line << "; if that is meant, " << how_to_record(test));
}

// Only NVIDIA's hardware needs instructions for bounds checks.
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
