// Plots as SVG text, drawn from numbers: lines, points and bars.
#pragma once
#include "tools/html_text.h"
#include <string>
#include <utility>
#include <vector>

namespace kvrun::comparison {

struct Series {
	std::string name;
	std::vector<std::pair<double, double>> points; // x, y; y <= 0 is omitted on a logarithmic axis
};
struct Axes {
	std::string title, x, y; // y: "tok/s"
	bool log_x = false, log_y = false;
	bool lines = true; // false: points alone
};
std::string plot(const Axes&, const std::vector<Series>&);

struct Bar {
	std::string name;
	double value;
	std::string text; // at the end of the bar
};
// Horizontal bars; a line at `limit` if it is above 0.
std::string bars(const std::string& title, const std::vector<Bar>&, double limit, const std::string& limit_text);

} // namespace kvrun::comparison
