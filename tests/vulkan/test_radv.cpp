// The results of AMD's compiler for every kernel, without hardware: no spills, and no more registers and cycles than in
// shaders/baselines/radv.txt. The compiler is this system's or, under vendor_drivers.sh, the one of ../shared/vendor.
// KVRUN_TEST_EVERY=n divides the uses into n parts, and each family compiles one: the first family part
// KVRUN_TEST_PART, the next the next one. With n entries of ctest every use is compiled for a chip. This system's
// compiler also compiles the first use of each kernel for the first family.
#include "backends/vulkan/open_vulkan.h"
#include "engine/core/error.h"
#include "kernel_list.inc"
#include "tests/support/scoped_env.h"
#include "tests/support/skip.h"
#include "tests/vulkan/baseline.h"
#include "tools/env.h"
#include <cstdlib>
#include <doctest/doctest.h>
#include <fstream>
#include <set>
#include <sstream>
#include <xxhash.h>

using namespace kvrun;
using vk::KernelReport;

namespace {

constexpr uint32_t kFewSpills = 8; // registers of one use, with a compiler that has no baseline

std::vector<std::string> families(bool recording) { // recording always includes all
	const char* asked = std::getenv("KVRUN_TEST_FAMILIES");
	std::istringstream list(asked && *asked && !recording ? asked : "navi21,gfx1100,vega20");
	std::vector<std::string> out;
	for (std::string f; std::getline(list, f, ',');) out.push_back(f);
	return out;
}
uint64_t number_in(const char* variable, uint64_t otherwise) {
	const char* text = std::getenv(variable);
	return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}
const char* vendor_drivers() { return std::getenv("KVRUN_TEST_VENDOR_DRIVERS"); } // they imitate one given chip
std::string radv() {
	if (vendor_drivers()) return std::string(vendor_drivers()) + "/icd/radeon_icd.json";
	const ScopedEnv files("VK_DRIVER_FILES", ""), names("VK_ICD_FILENAMES", "");
	return vk::find_icd("radeon_icd");
}

// The name that this RADV has for the chip; the given one where it has none. Another process tries them, because RADV
// ends its process at an unknown name.
std::string name_here(const std::string& chip, const std::string& icd) {
	for (const std::string& name : vk::radv_names(chip)) { // a driver that refused a name is left out from then on
		const ScopedEnv files("VK_DRIVER_FILES", icd), names("VK_ICD_FILENAMES", icd);
		const ScopedEnv family("RADV_FORCE_FAMILY", name);
		BackendOptions options = options_from_environment();
		options.probe = KVRUN_PROBE_PROGRAM;
		const vk::VulkanDevices devices(options);
		if (devices.reports().size() == 1 && !devices.reports()[0].limits.empty()) return name;
	}
	return chip;
}

KernelReport report(const char* kernel, const char* use, uint64_t registers, uint64_t spills = 0,
                    uint64_t cycles = 2000) {
	KernelReport k;
	k.kernel = kernel, k.use = use, k.vector_registers = registers, k.spills = spills, k.cycles = cycles;
	k.measured = true, k.code_bytes = 100;
	return k;
}

} // namespace

TEST_CASE("radv: statistics of the compilers kvrun knows, and names it does not know") {
	KernelReport amd, intel, nvidia;
	CHECK(add_statistic(amd, "VGPRs", 64));
	CHECK(!amd.spilling());
	CHECK(add_statistic(amd, "Spilled SGPRs", 2));
	CHECK(add_statistic(amd, "Spilled VGPRs", 3));
	CHECK(amd.vector_registers == 64);
	CHECK(amd.spills == 5);
	CHECK(add_statistic(intel, "Max live registers", 140));
	CHECK(add_statistic(intel, "Max dispatch width", 16));
	CHECK(!intel.spilling());
	CHECK(add_statistic(intel, "Fills", 7));
	CHECK(intel.spilling());
	CHECK(add_statistic(nvidia, "Number of GPRs", 128));
	CHECK(add_statistic(nvidia, "Spills to reg", 9)); // another kind of registers
	CHECK(!nvidia.spilling());
	CHECK(add_statistic(nvidia, "SLM size", 16));
	CHECK(nvidia.spilling());
	CHECK(!add_statistic(nvidia, "Registers spilled", 1));
}

TEST_CASE("radv: the comparison sees growth, spills, new kernels and old ones") {
	const std::vector<KernelReport> was = {report("attend", "K 2 bit, V 2 bit", 100), report("embed", "", 16)};
	std::stringstream file;
	write_baseline(file, "radv Mesa 1.2.3", "radv", {{"navi21", was}, {"vega20", was}});
	const Baseline b = read_baseline(file);
	CHECK(b.driver == "radv Mesa 1.2.3");
	REQUIRE(b.kernels.size() == 4);
	CHECK(b.kernels.at("navi21 attend K 2 bit, V 2 bit") == Baseline::Numbers{100, 2000, 0});
	const auto said = [&](std::vector<KernelReport> now) {
		const std::vector<std::string> lines = compare_with(b, "navi21", now);
		REQUIRE(lines.size() <= 1);
		return lines.empty() ? "" : lines[0];
	};
	CHECK(said(was) == "");
	CHECK(said({report("attend", "K 2 bit, V 2 bit", 115), was[1]}) == "");
	CHECK(said({report("attend", "K 2 bit, V 2 bit", 116), was[1]}) ==
	      "navi21 attend K 2 bit, V 2 bit: was 100 VGPRs, is 116 (+16 %)");
	CHECK(said({was[0], report("embed", "", 16, 0, 2300)}) == "");
	CHECK(said({was[0], report("embed", "", 16, 0, 2400)}) == "navi21 embed : was 2000 cycles, is 2400 (+20 %)");
	CHECK(said({was[0]}) == "navi21 embed : in the baseline, but no longer compiled");
	CHECK(compare_with(b, "navi21", {was[0]}, {"navi21 embed "}).empty());
	CHECK(said({was[0], was[1], report("attend", "new", 8)}) == "navi21 attend new: not in the baseline, 8 VGPRs");
	CHECK(compare_with(b, "gfx1100", was).size() == 2); // another chip's numbers are ignored
	CHECK(faults_of("navi21", was).empty());
	CHECK(faults_of("navi21", {report("embed", "F16", 16, 3)}) ==
	      std::vector<std::string>{"navi21 embed F16: spills 3 registers, 0 bytes of scratch"});
	CHECK(faults_of("navi21", {report("embed", "F16", 16, 3)}, [](auto&) { return 3; }).empty());
	CHECK(faults_of("navi21", {report("embed", "F16", 16, 3)}, [](auto&) { return 2; }).size() == 1);
	CHECK(faults_of("navi21", {was[0], was[0]}).size() == 1);
	CHECK(faults_of("navi21", {KernelReport{}}).size() == 1);
}

TEST_CASE("radv: both names of a chip that Mesa renamed") {
	CHECK(vk::radv_names("gfx1100") == std::vector<std::string>{"gfx1100", "navi31"});
	CHECK(vk::radv_names("navi33") == std::vector<std::string>{"navi33", "gfx1102"});
	CHECK(vk::radv_names("vega20") == std::vector<std::string>{"vega20"});
}

TEST_CASE("radv: assembly, where it is asked for") {
	const std::string icd = radv();
	if (icd.empty() || vendor_drivers()) return; // the next test reports it
	const ScopedEnv files("VK_DRIVER_FILES", icd), names("VK_ICD_FILENAMES", icd),
	    family("RADV_FORCE_FAMILY", "navi21");
	const vk::VulkanDevices devices(options_from_environment());
	REQUIRE(!devices.reports().empty());
	if (devices.reports()[0].limits.empty()) return;
	const auto merge = [](const std::string& kernel, const std::string&) { return kernel == "attend_merge"; };
	for (const bool asked : {true, false})
		for (const vk::KernelReport& r : devices.compile_all(0, merge, asked))
			CHECK((r.assembly.find("s_endpgm") != std::string::npos) == asked);
}

TEST_CASE("radv: every kernel compiles for AMD chips without spilling, with the registers and cycles of the baseline") {
	const std::string icd = radv();
	if (icd.empty()) {
		skip("no RADV driver (package mesa-vulkan-drivers)");
		return;
	}
	const ScopedEnv files("VK_DRIVER_FILES", icd), names("VK_ICD_FILENAMES", icd); // the loader finds only this driver
	const bool recording = std::getenv("KVRUN_TEST_RECORD") != nullptr;
	REQUIRE_MESSAGE(!(recording && vendor_drivers()),
	                "the baseline is of this system's driver; " << how_to_record("radv"));
	std::ifstream file(baseline_file("radv"));
	const Baseline baseline = read_baseline(file);
	Families measured;
	std::string driver;
	const std::vector<std::string> chips = families(recording);
	const uint64_t parts = recording ? 1 : std::max(number_in("KVRUN_TEST_EVERY", 1), uint64_t(1));
	for (const std::string& chip : chips) {
		const ScopedEnv family("RADV_FORCE_FAMILY", vendor_drivers() ? "" : name_here(chip, icd));
		INFO(chip);
		const vk::VulkanDevices devices(options_from_environment());
		REQUIRE(devices.reports().size() == 1);
		if (!vendor_drivers() && devices.reports()[0].limits.empty()) {
			skip("this RADV has no RADV_FORCE_FAMILY, newer ones dropped it; radv26 has AMD's compiler");
			return;
		}
		driver = devices.reports()[0].info.driver;
		const bool first_uses = !vendor_drivers() && chip == chips.front();
		const uint64_t part = (number_in("KVRUN_TEST_PART", 0) + measured.size()) % parts;
		std::set<std::string> left_out, kernels;
		KeptUses kept(baseline, chip);
		// By name: devices differ in their uses, and uses of one kind follow each other.
		const auto wanted = [&](const std::string& kernel, const std::string& use) {
			const std::string name = kernel + " " + use;
			if (KeptUses::asked()) return kept.wants(kernel, use);
			if (kernels.insert(kernel).second && first_uses) return true;
			if (XXH3_64bits(name.data(), name.size()) % parts == part) return true;
			left_out.insert(chip + " " + name);
			return false;
		};
		measured.emplace_back(chip, devices.compile_all(0, wanted));
		CHECK((KeptUses::asked() || measured.back().second.size() + left_out.size() > 10 * size_t(Kernel::Count)));
		// Kernels are made for the compilers of the baselines; others may need a few registers more.
		const bool known = recording || vendor_drivers() || driver == baseline.driver;
		const std::vector<KernelReport>& all = measured.back().second;
		for (const std::string& line : faults_of(chip, all, [&](auto&) { return known ? 0 : kFewSpills; }))
			FAIL_CHECK(line);
		if (const auto n = std::ranges::count_if(all, &KernelReport::spilling))
			MESSAGE(chip << ": " << n << " of " << all.size() << " uses spill up to " << kFewSpills << " registers");
		if (KeptUses::asked()) measured.back().second = kept.with(all);
		if (recording) continue;
		if (driver == baseline.driver)
			for (const std::string& line : compare_with(baseline, chip, measured.back().second, left_out))
				FAIL_CHECK(line << "; if that is meant, " << how_to_record("radv"));
		else
			MESSAGE(chip << ": registers and cycles are not compared, only spills: the baseline is of '"
			             << baseline.driver << "', this driver is '" << driver << "'; to compare from here on, "
			             << how_to_record("radv"));
	}
	if (recording) record_baseline("radv", "radv", driver, measured);
}
