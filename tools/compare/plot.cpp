// Plots as SVG text.
#include "tools/compare/plot.h"
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvrun::comparison {
namespace {

constexpr double kWidth = 560, kHeight = 300, kLeft = 64, kRight = 150, kTop = 28, kBottom = 42; // pixels
constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd",
                                    "#ff7f0e", "#17a2b8", "#8c564b", "#7f7f7f"};

struct AxisScale { // maps a value to a pixel
	double low = 0, high = 1, from = 0, to = 1;
	bool log = false;
	double operator()(double v) const {
		const double a = log ? std::log10(v) : v, l = log ? std::log10(low) : low, h = log ? std::log10(high) : high;
		return from + (h > l ? (a - l) / (h - l) : 0.5) * (to - from);
	}
};

// Round numbers inside the scale.
std::vector<double> ticks(const AxisScale& s) {
	if (s.high <= s.low) return {s.low};
	std::vector<double> out;
	if (s.log) {
		for (double power = std::pow(10, std::floor(std::log10(s.low))); power <= s.high; power *= 10)
			for (const double m : {1., 2., 5.})
				if (power * m >= s.low * 0.9999 && power * m <= s.high * 1.0001) out.push_back(power * m);
		return out;
	}
	const double step0 = (s.high - s.low) / 5, power = std::pow(10, std::floor(std::log10(std::max(step0, 1e-300))));
	double step = power;
	for (const double m : {2., 5., 10.})
		if (step < step0) step = m * power;
	for (double t = std::ceil(s.low / step) * step; t <= s.high + step * 1e-6; t += step) out.push_back(t);
	return out;
}

std::string tick_label(double v) {
	if (v >= 1024 && std::fmod(v, 1024) == 0) return fmt::format("{}k", v / 1024);
	return fmt::format("{:.3g}", v);
}

std::string text_at(double x, double y, const char* anchor, const std::string& s, int size = 11) {
	return fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='{}' font-size='{}'>{}</text>", x, y, anchor, size,
	                   escaped(s));
}

void widen(AxisScale& s, double v) {
	if (!std::isfinite(v) || (s.log && v <= 0)) return;
	s.low = std::min(s.low, v), s.high = std::max(s.high, v);
}

std::string frame(const Axes& a, const AxisScale& x, const AxisScale& y) {
	std::string s;
	for (const double t : ticks(y))
		s += fmt::format("<line x1='{0:.1f}' x2='{1:.1f}' y1='{2:.1f}' y2='{2:.1f}' stroke='#e3e3e3'/>", x.from, x.to,
		                 y(t)) +
		     text_at(x.from - 6, y(t) + 4, "end", tick_label(t));
	for (const double t : ticks(x)) s += text_at(x(t), y.from + 16, "middle", tick_label(t));
	s += fmt::format("<path d='M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}' fill='none' stroke='#888'/>", x.from, y.to, y.from,
	                 x.to);
	return s + text_at((x.from + x.to) / 2, y.from + 34, "middle", a.x) + text_at(x.from, 16, "start", a.title, 13) +
	       text_at(x.from - 56, y.to - 4, "start", a.y);
}

std::string svg(double height, const std::string& content) {
	return fmt::format("<svg viewBox='0 0 {0} {1}' width='{0}' height='{1}' xmlns='http://www.w3.org/2000/svg' "
	                   "font-family='sans-serif' fill='#222'>{2}</svg>\n",
	                   kWidth, height, content);
}

} // namespace

std::string plot(const Axes& a, const std::vector<Series>& all) {
	AxisScale x{INFINITY, -INFINITY, kLeft, kWidth - kRight, a.log_x},
	    y{INFINITY, -INFINITY, kHeight - kBottom, kTop, a.log_y};
	for (const Series& s : all)
		for (const auto& [px, py] : s.points)
			if (!a.log_y || py > 0) widen(x, px), widen(y, py);
	if (!(x.low <= x.high) || !(y.low <= y.high)) return "";
	if (a.log_y)
		y.low = std::pow(10, std::floor(std::log10(y.low / 1.5))),
		y.high = std::pow(10, std::ceil(std::log10(y.high * 1.5)));
	else
		y.low = std::min(0.0, y.low), y.high *= 1.05;
	if (!a.lines) x.low = std::min(0.0, x.low), x.high *= 1.1;
	if (y.low >= y.high) y.high = y.low + 1;
	std::string s = frame(a, x, y);
	for (size_t i = 0; i < all.size(); ++i) {
		const char* colour = kColours[i % std::size(kColours)];
		std::string path;
		for (const auto& [px, py] : all[i].points) {
			if (!std::isfinite(px) || !std::isfinite(py) || (a.log_y && py <= 0) || (a.log_x && px <= 0)) continue;
			path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x(px), y(py));
			s += fmt::format(
			    "<circle cx='{:.1f}' cy='{:.1f}' r='3.2' fill='{}'><title>{}: {:.6g}, {:.6g}</title></circle>", x(px),
			    y(py), colour, escaped(all[i].name), px, py);
		}
		if (a.lines) s += fmt::format("<path d='{}' fill='none' stroke='{}' stroke-width='1.6'/>", path, colour);
		const double at = kTop + 10 + 16 * double(i);
		s += fmt::format("<rect x='{:.1f}' y='{:.1f}' width='10' height='10' fill='{}'/>", kWidth - kRight + 14, at - 9,
		                 colour) +
		     text_at(kWidth - kRight + 28, at, "start", all[i].name.substr(0, 20));
	}
	return svg(std::max(kHeight, kTop + 24 + 16 * double(all.size())), s);
}

std::string bars(const std::string& title, const std::vector<Bar>& all, double limit, const std::string& limit_text) {
	if (all.empty()) return "";
	constexpr double kRow = 20, kName = 120, kRoom = 160;
	double most = limit;
	for (const Bar& b : all) most = std::max(most, b.value);
	const AxisScale x{0, most > 0 ? most : 1, kName, kWidth - kRoom, false};
	std::string s = text_at(8, 16, "start", title, 13);
	for (size_t i = 0; i < all.size(); ++i) {
		const double y = 30 + kRow * double(i);
		s += text_at(kName - 6, y + 11, "end", all[i].name) +
		     fmt::format("<rect x='{}' y='{:.1f}' width='{:.1f}' height='14' fill='#1f77b4'/>", kName, y,
		                 std::max(1.0, x(all[i].value) - kName)) +
		     text_at(x(all[i].value) + 5, y + 11, "start", all[i].text);
	}
	const double bottom = 34 + kRow * double(all.size());
	if (limit > 0)
		s += fmt::format(
		         "<line x1='{0:.1f}' x2='{0:.1f}' y1='24' y2='{1:.1f}' stroke='#d62728' stroke-dasharray='4 3'/>",
		         x(limit), bottom) +
		     text_at(x(limit) + 4, bottom + 6, "start", limit_text);
	return svg(bottom + 14, s);
}

} // namespace kvrun::comparison
