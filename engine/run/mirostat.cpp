#include "engine/run/mirostat.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvrun {

size_t Mirostat::ranks(std::span<const double> log_probable, size_t n_vocab) const {
	double sum = 0, squares = 0;
	for (size_t i = 0; i + 1 < log_probable.size(); ++i) {
		const double t = std::log(double(i + 2) / double(i + 1));
		sum += t * (log_probable[i] - log_probable[i + 1]), squares += t * t;
	}
	const double s = sum / squares, eps = s - 1; // the exponent of Zipf's law
	const double k = std::pow(eps * std::exp2(limit_) / (1 - std::pow(double(n_vocab), -eps)), 1 / s);
	if (!(k >= 1)) return 1; // also where all are equally likely, or there is but one
	return size_t(std::min(k, double(n_vocab)));
}

double Mirostat::least_log() const { return -limit_ * std::numbers::ln2; }

void Mirostat::observe(double probability) { limit_ -= options_.rate * (-std::log2(probability) - options_.target); }

} // namespace kvrun
