// What `kvrun tune --kernels` measures: every choice of a device, with results that are those of the cpu backend.
#include "backends/cpu/open_cpu.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tools/tune/measure.h"
#include <algorithm>
#include <doctest/doctest.h>

using namespace kvrun;

TEST_CASE("tune: every choice of a device has a load that measures it, and every value agrees with the cpu backend") {
	for (const TestDevice& d : test_devices()) {
		const std::string& name = d.name;
		const std::unique_ptr<Backend> device = open_test_device(name); // measuring changes its choices
		const std::unique_ptr<Backend> cpu = make_cpu_backend();
		auto loads = make_loads(*device, {{{DType::Q4_K, 256, 256}}, 8, 2, 64});
		for (const Tunable& t : device->tunables()) {
			INFO(name << ": " << t.name);
			CHECK(
			    std::ranges::any_of(loads, [&](const auto& l) { return std::ranges::count(l->choices, t.name) > 0; }));
		}
		// Of those, attention of prompts. Matrices are slow on software drivers; without them, there is no choice of
		// how they are used.
		std::erase_if(loads, [](const auto& l) { return !std::ranges::count(l->choices, "attend_matrices"); });
		std::erase_if(loads, [i = size_t(0)](const auto&) mutable { return !row_wanted(i++); });
		for (const auto& load : loads)
			std::erase_if(load->choices,
			              [](const std::string& c) { return c == "matrices" || c == "attend_matrices"; });
		const std::vector<TuneChoice> all =
		    measure_choices(*device, *cpu, loads, {[](double) {}, [] { return false; }});
		for (const TuneChoice& c : all)
			for (const TuneValue& v : c.values) {
				INFO(name << ": " << c.name << " " << v.value);
				for (const TuneSample& s : v.samples) CHECK_MESSAGE(s.fault.empty(), s.load << ": " << s.fault);
				if (!v.samples.empty()) CHECK(v.ratio > 0);
			}
	}
}
