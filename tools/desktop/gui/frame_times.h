// Statistics of the window's frames: intervals between them and the work in each.
#pragma once
#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <vector>

namespace kvrun::desktop {

class FrameTimes {
 public:
	// drawn: the picture differed from the previous one.
	void add(double interval_ms, double work_ms, bool drawn) {
		n_drawn_ += drawn;
		intervals_.push_back(interval_ms);
		work_.push_back(work_ms);
	}
	void clear() { intervals_.clear(), work_.clear(), n_drawn_ = 0; }
	// "612 frames, 59.9/s, 80 of them new pictures; interval p50 16.7, p95 17.2, p99 21.0, longest 33.1 ms; work
	// p50 4.1, p99 9.0 ms"
	std::string text() const {
		if (intervals_.empty()) return "no frames";
		double sum = 0;
		for (const double i : intervals_) sum += i;
		return fmt::format("{} frames, {:.1f}/s, {} of them new pictures; interval p50 {:.1f}, p95 {:.1f}, p99 {:.1f}, "
		                   "longest {:.1f} ms; work p50 "
		                   "{:.1f}, p99 {:.1f} ms",
		                   intervals_.size(), 1000 * double(intervals_.size()) / sum, n_drawn_, at(intervals_, 0.5),
		                   at(intervals_, 0.95), at(intervals_, 0.99), at(intervals_, 1), at(work_, 0.5),
		                   at(work_, 0.99));
	}

 private:
	static double at(std::vector<double> v, double share) {
		const auto nth = v.begin() + ptrdiff_t(share * double(v.size() - 1));
		std::nth_element(v.begin(), nth, v.end());
		return *nth;
	}
	std::vector<double> intervals_, work_; // ms
	size_t n_drawn_ = 0;
};

} // namespace kvrun::desktop
