// Measures a device's choices between designs, one after another, each on the loads that it changes.
#pragma once
#include "tools/tune/loads.h"
#include <functional>

namespace kvrun {

struct TuneSample { // one value of a choice on one load
	std::string load;
	double ms = 0;     // device time of one run, median
	double ratio = 1;  // of times to those of kvrun's own value
	std::string fault; // of its results; empty if they agree with the cpu backend
};
struct TuneValue {
	std::string value;
	double ratio = 1; // geometric mean over the loads
	std::vector<TuneSample> samples;
	bool agrees() const;
};
struct TuneChoice {
	std::string name, what;
	std::vector<TuneValue> values; // the first is kvrun's own
	size_t best = 0;
};
struct TuneHooks {
	std::function<void(double done)> progress;
	std::function<bool()> stop;
};
// The device is left with the best values. Earlier choices hold while later ones are measured. Stops between samples;
// then the last choice is missing.
std::vector<TuneChoice> measure_choices(Backend& device, Backend& reference,
                                        std::span<const std::unique_ptr<TuneLoad>> loads, const TuneHooks&);

} // namespace kvrun
