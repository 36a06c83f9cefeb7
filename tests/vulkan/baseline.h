// Baselines: the compiler's results for every kernel and use when a file of shaders/baselines was recorded.
#pragma once
#include "tests/vulkan/kernel_reports.h"
#include <algorithm>
#include <cstdlib>
#include <doctest/doctest.h>
#include <fstream>
#include <istream>
#include <ostream>
#include <set>
#include <sstream>

namespace kvrun {

constexpr uint64_t kBaselineMost = 115; // vector registers and cycles in % of the baseline

inline std::string baseline_file(const std::string& name) {
	return KVRUN_SOURCE_DIR "/shaders/baselines/" + name + ".txt";
}
// The command that records the file of ctest entry `test`.
inline std::string how_to_record(const std::string& test) {
	return "KVRUN_TEST_RECORD=1 ctest --test-dir build -R '^" + test + "$'";
}

struct Baseline {
	struct Numbers {
		uint64_t vector_registers, cycles, shared_bytes;
		bool operator==(const Numbers&) const = default;
	};
	std::string driver;                     // "radv Mesa 22.3.6"
	std::map<std::string, Numbers> kernels; // by key()
};

inline Baseline read_baseline(std::istream& in) {
	Baseline b;
	for (std::string line; std::getline(in, line);) {
		constexpr std::string_view driver = "# driver: ";
		if (line.starts_with(driver)) b.driver = line.substr(driver.size());
		if (line.empty() || line[0] == '#') continue;
		std::istringstream words(line);
		std::string family, kernel, use;
		Baseline::Numbers n{};
		words >> family >> kernel >> n.vector_registers >> n.cycles >> n.shared_bytes;
		REQUIRE_MESSAGE(!words.fail(), "not a line of the baseline: " << line);
		std::getline(words >> std::ws, use);
		REQUIRE_MESSAGE(b.kernels.emplace(family + " " + kernel + " " + use, n).second,
		                "twice in the baseline: " << line);
	}
	return b;
}
using Families = std::vector<std::pair<std::string, std::vector<vk::KernelReport>>>; // chip, its kernels
inline void write_baseline(std::ostream& out, const std::string& driver, const std::string& test,
                           const Families& families) {
	out << "# Registers, cycles and shared memory of kernels, as a compiler makes them for chips that need not be "
	       "there.\n"
	       "# Cycles are its estimate of a subgroup, in which a loop counts as some rounds. The test "
	    << test
	    << " compares: nothing\n"
	       "# spills, no kernel takes 15 % more vector registers or cycles. To record:\n# "
	    << how_to_record(test) << "\n# driver: " << driver << "\n"
	    << fmt::format("# {:<9}{:<21} {:>5} {:>10} {:>6}  {}\n", "family", "kernel", "VGPRs", "cycles", "LDS", "use");
	for (const auto& [family, all] : families)
		for (const vk::KernelReport& k : all)
			out << fmt::format("{:<11}{:<21} {:>5} {:>10} {:>6}{}{}\n", family, k.kernel, k.vector_registers, k.cycles,
			                   k.shared_bytes, k.use.empty() ? "" : "  ", k.use);
}
// KVRUN_TEST_RECORD=new keeps the numbers of uses that the file has: only others are compiled.
class KeptUses {
 public:
	KeptUses(const Baseline& b, std::string family) : baseline_(b), family_(std::move(family)) {}
	static bool asked() {
		const char* record = std::getenv("KVRUN_TEST_RECORD");
		return record && std::string_view(record) == "new";
	}
	// Whether the next use has to be compiled.
	bool wants(const std::string& kernel, const std::string& use) {
		const auto was = baseline_.kernels.find(family_ + " " + kernel + " " + use);
		kept_.push_back(was != baseline_.kernels.end());
		if (!kept_.back()) return true;
		vk::KernelReport k;
		k.kernel = kernel, k.use = use;
		k.vector_registers = was->second.vector_registers, k.cycles = was->second.cycles;
		k.shared_bytes = was->second.shared_bytes;
		reports_.push_back(k);
		return false;
	}
	// All uses, in their order, with these compiled ones.
	std::vector<vk::KernelReport> with(const std::vector<vk::KernelReport>& compiled) const {
		std::vector<vk::KernelReport> all;
		size_t i = 0, j = 0;
		for (const bool kept : kept_) all.push_back(kept ? reports_[i++] : compiled.at(j++));
		return all;
	}

 private:
	const Baseline& baseline_;
	std::string family_;
	std::vector<bool> kept_;
	std::vector<vk::KernelReport> reports_;
};

// KVRUN_TEST_RECORD=max keeps the larger of the numbers that the file has and these: for compilers whose estimates vary
// by process. It is run several times after a first KVRUN_TEST_RECORD=1.
inline void record_baseline(const std::string& name, const std::string& test, const std::string& driver,
                            Families families) {
	const std::string file = baseline_file(name);
	if (std::string_view(std::getenv("KVRUN_TEST_RECORD")) == "max") {
		std::ifstream in(file);
		const Baseline before = read_baseline(in);
		REQUIRE_MESSAGE(before.driver == driver, file << " is of another driver");
		for (auto& [family, all] : families)
			for (vk::KernelReport& k : all) {
				const auto was = before.kernels.find(key(family, k));
				if (was == before.kernels.end()) continue;
				k.vector_registers = std::max(k.vector_registers, was->second.vector_registers);
				k.cycles = std::max(k.cycles, was->second.cycles);
			}
	}
	std::ofstream out(file, std::ios::trunc);
	write_baseline(out, driver, test, families);
	out.close();
	REQUIRE_MESSAGE(out.good(), file << " cannot be written");
	MESSAGE("recorded " << file << " with " << driver);
}

// Differences from the baseline of the same driver, one line each; left_out: keys of uses that were not compiled.
inline std::vector<std::string> compare_with(const Baseline& b, const std::string& family,
                                             const std::vector<vk::KernelReport>& all,
                                             const std::set<std::string>& left_out = {}) {
	std::vector<std::string> out;
	std::map<std::string, Baseline::Numbers> gone;
	for (const auto& [name, n] : b.kernels)
		if (name.starts_with(family + " ") && !left_out.count(name)) gone.emplace(name, n);
	for (const vk::KernelReport& k : all) {
		const std::string name = key(family, k);
		const auto was = b.kernels.find(name);
		gone.erase(name);
		if (was == b.kernels.end()) {
			out.push_back(fmt::format("{}: not in the baseline, {} VGPRs", name, k.vector_registers));
			continue;
		}
		const auto compare = [&](uint64_t then, uint64_t now, const char* what) {
			if (now * 100 > then * kBaselineMost)
				out.push_back(fmt::format("{}: was {} {}, is {} (+{:.0f} %)", name, then, what, now,
				                          100 * (double(now) / double(then) - 1)));
		};
		compare(was->second.vector_registers, k.vector_registers, "VGPRs");
		compare(was->second.cycles, k.cycles, "cycles");
	}
	for (const auto& [name, n] : gone) out.push_back(fmt::format("{}: in the baseline, but no longer compiled", name));
	return out;
}

} // namespace kvrun
