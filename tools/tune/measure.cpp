// Measures choices between designs on a device.
#include "tools/tune/measure.h"
#include <algorithm>
#include <chrono>
#include <cmath>

namespace kvrun {
namespace {

constexpr size_t kRounds = 7;
constexpr double kLeastMs = 3;     // of a sample
constexpr uint32_t kMostRuns = 64; // of a sample

double median_of(std::vector<double> x) {
	const auto middle = x.begin() + ptrdiff_t(x.size() / 2);
	std::ranges::nth_element(x, middle);
	return *middle;
}

// Device time of n runs in ms; host time where the device has no timestamps.
double time_runs(Backend& b, TuneLoad& load, uint32_t n) {
	(void)b.op_times(/*reset=*/true);
	const auto start = std::chrono::steady_clock::now();
	for (uint32_t i = 0; i < n; ++i) load.run(b);
	b.submit();
	b.wait();
	const double host = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
	double device = 0;
	for (const OpTime& t : b.op_times(/*reset=*/true)) device += t.ms;
	return std::max(device > 0 ? device : host, 1e-6);
}

// Fills the samples of one load; returns false if stopped.
bool measure_load(Backend& device, Backend& reference, TuneLoad& load, TuneChoice& choice, const TuneHooks& hooks) {
	std::vector<std::vector<double>> ms(choice.values.size());
	uint32_t runs = 1;
	for (size_t i = 0; i < choice.values.size(); ++i) {
		TuneSample& s = choice.values[i].samples.emplace_back();
		s.load = load.name;
		device.tune(choice.name, choice.values[i].value);
		load.prepare(device);
		load.run(device); // pipelines are made
		device.submit();
		device.wait();
		s.fault = load.fault(device, reference);
		if (i == 0) runs = uint32_t(std::clamp(kLeastMs / time_runs(device, load, 1), 1.0, double(kMostRuns)));
	}
	for (size_t round = 0; round < kRounds; ++round)
		for (size_t k = 0; k < ms.size(); ++k) {
			if (hooks.stop()) return false;
			const size_t i = round % 2 ? ms.size() - 1 - k : k; // in turns, so that clocks that change favour none
			device.tune(choice.name, choice.values[i].value);
			load.prepare(device);
			ms[i].push_back(time_runs(device, load, runs) / runs);
		}
	for (size_t i = 0; i < ms.size(); ++i) {
		std::vector<double> ratios;
		for (size_t round = 0; round < kRounds; ++round) ratios.push_back(ms[i][round] / ms[0][round]);
		TuneSample& s = choice.values[i].samples.back();
		s.ms = median_of(ms[i]);
		// The less favourable of two: another program that runs at times disturbs medians more than minima.
		s.ratio = std::max(median_of(ratios), std::ranges::min(ms[i]) / std::ranges::min(ms[0]));
	}
	return true;
}

} // namespace

bool TuneValue::agrees() const {
	return std::ranges::all_of(samples, [](const TuneSample& s) { return s.fault.empty(); });
}

std::vector<TuneChoice> measure_choices(Backend& device, Backend& reference,
                                        std::span<const std::unique_ptr<TuneLoad>> loads, const TuneHooks& hooks) {
	std::vector<TuneChoice> out;
	device.time_ops(true);
	// What must be gained for another value than kvrun's own: more than measurements of a busy machine differ.
	const double enough = device.info().is_cpu ? 0.9 : 0.97;
	const auto next = [&]() -> std::optional<Tunable> { // which choices there are depends on those before
		for (const Tunable& t : device.tunables())
			if (std::ranges::find(out, t.name, &TuneChoice::name) == out.end()) return t;
		return {};
	};
	while (const std::optional<Tunable> t = next()) {
		TuneChoice choice{t->name, t->what, {}, 0};
		for (const std::string& v : t->values) choice.values.push_back({v, 1, {}});
		for (const std::unique_ptr<TuneLoad>& load : loads) {
			if (std::ranges::find(load->choices, t->name) == load->choices.end()) continue;
			if (hooks.stop() || !measure_load(device, reference, *load, choice, hooks)) return out;
			hooks.progress(double(out.size()) / double(out.size() + device.tunables().size()));
		}
		for (TuneValue& v : choice.values) {
			double sum = 0;
			for (const TuneSample& s : v.samples) sum += std::log(s.ratio);
			v.ratio = v.samples.empty() ? 1 : std::exp(sum / double(v.samples.size()));
		}
		for (size_t i = 1; i < choice.values.size(); ++i)
			if (choice.values[i].agrees() && choice.values[i].ratio < enough &&
			    choice.values[i].ratio < choice.values[choice.best].ratio)
				choice.best = i;
		device.tune(choice.name, choice.values[choice.best].value);
		out.push_back(std::move(choice));
	}
	device.time_ops(false);
	return out;
}

} // namespace kvrun
