// cos and sin of the rotations of positions, as a model with a given context turns them.
#pragma once
#include "models/config.h"
#include <cmath>

namespace kvrun {

class RopeTable {
 public:
	RopeTable(const Rope& rope, uint32_t ctx)
	    : inv_freq_(rope_inv_freq(rope, ctx)), scale_(rope_attention_scale(rope)) {}
	// Appends (n, rotary_dim / 2, 2): cos, sin of positions first .. first + n - 1. Taken on the host in double:
	// drivers may be as coarse as 2^-11, and at position 100 000 useless.
	void append(uint32_t first, uint32_t n, std::vector<float>& out) const {
		for (uint32_t pos = first; pos < first + n; ++pos)
			for (const float f : inv_freq_) {
				const double angle = double(pos) * double(f);
				out.push_back(float(std::cos(angle) * scale_));
				out.push_back(float(std::sin(angle) * scale_));
			}
	}

 private:
	std::vector<float> inv_freq_; // (rotary_dim / 2) radians per position
	float scale_;                 // multiplies cos and sin
};

// One for each of Config::ropes; and what positions do to q.
class RopeTables {
 public:
	RopeTables(const Config& cfg, uint32_t ctx) : temperature_(cfg.temperature) {
		for (const Rope& r : cfg.ropes) tables_.emplace_back(r, ctx);
	}
	const RopeTable& operator[](size_t i) const { return tables_[i]; }
	// Appends (n): what Config::temperature adds to q, as a share of it, at positions first .. first + n - 1.
	void append_temperature(uint32_t first, uint32_t n, std::vector<float>& out) const {
		for (uint32_t pos = first; pos < first + n; ++pos)
			out.push_back(float(temperature_.scale * std::log(1. + pos / temperature_.length)));
	}

 private:
	std::vector<RopeTable> tables_;
	Temperature temperature_;
};

} // namespace kvrun
