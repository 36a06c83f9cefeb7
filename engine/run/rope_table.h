// cos and sin of the rotation of each position, for a model and a given context.
#pragma once
#include "engine/run/positions.h"
#include "models/config.h"
#include <cmath>

namespace kvrun {

class RopeTable {
 public:
	RopeTable(const Rope& rope, uint32_t ctx)
	    : axes_(rope.axes), inv_freq_(rope_inv_freq(rope, ctx)), scale_(rope_attention_scale(rope)) {}
	// Appends (rotary_dim / 2, 2): cos, sin of a position. Computed on the host in double: errors of drivers may be as
	// large as 2^-11, and results at position 100 000 useless.
	void append(const Position& at, std::vector<float>& out) const {
		for (uint32_t i = 0; i < inv_freq_.size(); ++i) {
			const RopeAxes::Axis axis = axes_ ? axes_.of(i) : RopeAxes::Time;
			const uint32_t numbers[] = {at.time, at.line, at.column, at.image}; // by RopeAxes::Axis
			const double angle = double(numbers[axis]) * double(inv_freq_[i]);
			out.push_back(float(std::cos(angle) * scale_));
			out.push_back(float(std::sin(angle) * scale_));
		}
	}
	void append(uint32_t at, std::vector<float>& out) const { append({at, at, at, at}, out); } // of text

 private:
	RopeAxes axes_;
	std::vector<float> inv_freq_; // (rotary_dim / 2) radians per position
	float scale_;                 // multiplies cos and sin
};

// One table for each of Config::ropes, and the effect of positions on q.
class RopeTables {
 public:
	RopeTables(const Config& cfg, uint32_t ctx) : temperature_(cfg.temperature) {
		for (const Rope& r : cfg.ropes) tables_.emplace_back(r, ctx);
	}
	const RopeTable& operator[](size_t i) const { return tables_[i]; }
	// Appends (n): the amount that Config::temperature adds to q, as a share of q, at positions first .. first + n - 1.
	void append_temperature(uint32_t first, uint32_t n, std::vector<float>& out) const {
		for (uint32_t pos = first; pos < first + n; ++pos)
			out.push_back(float(temperature_.scale * std::log(1. + (pos + temperature_.offset) / temperature_.length)));
	}

 private:
	std::vector<RopeTable> tables_;
	Temperature temperature_;
};

} // namespace kvrun
