// The report as one self-contained HTML file: plots, tables, a section per device.
#include "tools/compare/plot.h"
#include "tools/compare/tables.h"
#include <algorithm>
#include <map>

namespace kvrun::comparison {
namespace {

constexpr const char* kStyle =
    "body{font:14px/1.45 sans-serif;margin:24px auto;max-width:1180px;padding:0 16px;color:#222;background:#fff}"
    "h1{font-size:22px}h2{font-size:18px;margin-top:32px;border-bottom:1px solid #ddd}h3{font-size:15px}"
    "table{border-collapse:collapse;font-size:12.5px}td,th{border:1px solid #ddd;padding:2px 8px;text-align:right}"
    "td:first-child,th:first-child{text-align:left}th{background:#f5f5f5}"
    ".good{background:#d9f2d9}.note{background:#fff0c2}.bad{background:#f6b8b8;font-weight:bold}"
    ".scroll{overflow-x:auto}.plots{display:flex;flex-wrap:wrap;gap:16px}svg{max-width:100%;height:auto}"
    ".verdict{padding:8px 12px;border-radius:6px;font-size:15px}nav a{margin-right:14px}";

const char* class_of(Mark m) {
	switch (m) {
	case Mark::Good: return " class=good";
	case Mark::Note: return " class=note";
	case Mark::Bad: return " class=bad";
	case Mark::None: break;
	}
	return "";
}

std::string html(const Table& t, const char* heading = "h2") {
	if (t.rows.empty()) return "";
	std::string s = fmt::format("<{0}>{1}</{0}><div class=scroll><table><tr>", heading, escaped(t.title));
	for (const std::string& h : t.heads) s += "<th>" + escaped(h) + "</th>";
	s += "</tr>\n";
	for (const auto& row : t.rows) {
		s += "<tr>";
		for (const Cell& c : row)
			s += fmt::format("<td{}{}>{}</td>", class_of(c.mark),
			                 c.hint.empty() ? "" : fmt::format(" title=\"{}\"", escaped(c.hint)), escaped(c.text));
		s += "</tr>\n";
	}
	return s + "</table></div>\n";
}

// A series per policy of one device's tests: f(test) -> x, y.
template <class F> std::vector<Series> by_policy(const Json& device, F f) {
	std::vector<Series> out;
	for (const Json& t : list(device["stages"], "speed", "results")) {
		const auto point = f(t);
		if (!(point.second > 0)) continue;
		const std::string policy = t["kv"];
		auto it = std::ranges::find(out, policy, &Series::name);
		if (it == out.end()) it = out.insert(out.end(), {policy, {}});
		it->points.push_back(point);
	}
	for (Series& s : out) std::ranges::sort(s.points);
	return out;
}

std::string speed_plot(const Json& d) {
	return plot({.title = fmt::format("Generation, {}", d["label"].get<std::string>()),
	             .x = "tokens in the cache",
	             .y = "tok/s"},
	            by_policy(d, [](const Json& t) {
		            const bool wanted = t["n_gen"] > 0 && t["sequences"] == 1;
		            return std::pair(number(t["n_depth"]), wanted ? number(t["tok_s_median"]) : 0.0);
	            }));
}

std::string memory_plot(const Json& run) {
	for (const Json& d : run["devices"]) // equal on all devices, except for the size of pages
		if (find(d["stages"], "speed"))
			return plot({.title = "Memory of the cache", .x = "tokens", .y = "MiB"}, by_policy(d, [](const Json& t) {
				            const double n = number(t["n_depth"]) + number(t["n_prompt"]) + number(t["n_gen"]);
				            return std::pair(n, t["sequences"] == 1 ? number(t["kv_bytes"]) / (1 << 20) : 0.0);
			            }));
	return "";
}

std::string quality_plot(const Json& run) {
	std::vector<Series> all;
	for (const Json& d : run["devices"]) {
		const Json* q = find(d["stages"], "quality");
		if (!q) continue;
		Series s{d["label"], {}};
		for (const Json& r : (*q)["text"]["results"])
			s.points.push_back({number(r["stored_bits_per_element"]), number(r["kld_mean"])});
		all.push_back(s);
	}
	return plot({.title = "KL divergence from f16 against stored bits",
	             .x = "bits per element",
	             .y = "nats",
	             .log_y = true,
	             .lines = false},
	            all);
}

// Bytes per second of each operation, from single-sequence generation at the largest depth under the first policy.
std::string op_bars(const Json& d) {
	const Json* deepest = nullptr;
	for (const Json& t : list(d["stages"], "speed", "results"))
		if (t["n_gen"] > 0 && t["sequences"] == 1 && t.contains("ops") &&
		    (!deepest || t["n_depth"] > (*deepest)["n_depth"]))
			deepest = &t;
	if (!deepest) return "";
	const double peak = (*find(d["stages"], "speed"))["device"].value("peak_bytes_per_s", 0.0);
	std::vector<Bar> all;
	for (const Json& o : (*deepest)["ops"]) {
		const double rate = o["bytes_per_s"];
		if (rate > 0)
			all.push_back({o["op"], rate / 1e9,
			               fmt::format("{:.2f} GB/s, {:.2f} ms{}", rate / 1e9, number(o["ms"]),
			                           peak > 0 ? fmt::format(", {:.0f} %", rate / peak * 100) : "")});
	}
	return bars(fmt::format("{}, {}, {}", d["label"].get<std::string>(), (*deepest)["test"].get<std::string>(),
	                        (*deepest)["kv"].get<std::string>()),
	            all, peak / 1e9, fmt::format("peak {:.0f} GB/s", peak / 1e9));
}

std::string facts(const Json& j) {
	std::string s = "<div class=scroll><table>";
	for (const auto& [key, value] : j.items()) {
		if (value.is_array() && value.empty()) continue;
		s += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escaped(key),
		                 escaped(value.is_string() ? value.get<std::string>() : value.dump()));
	}
	return s + "</table></div>\n";
}

std::string device_part(const Json& d, size_t number) {
	std::string s = fmt::format("<h2 id=device{}>{}</h2>\n", number, escaped(d["label"].get<std::string>()));
	s += "<div class=plots>" + speed_plot(d) + op_bars(d) + "</div>\n";
	s += html(ops_table(d), "h3");
	Json report = d["report"];
	const Json limits = report.value("limits", Json::object());
	report.erase("limits");
	return s + "<details><summary>driver and limits</summary>" + facts(report) + facts(limits) + "</details>\n";
}

} // namespace

std::string report_html(const Json& run) {
	bool wrong = false, noted = false;
	std::string findings;
	for (const Json& f : run["findings"]) {
		const std::string level = f["level"];
		wrong |= level == "wrong" || level == "failed", noted = true;
		findings += fmt::format("<li><b>{}</b> {}, {}: {}</li>\n", level, escaped(f["device"].get<std::string>()),
		                        f["stage"].get<std::string>(), escaped(f["text"].get<std::string>()));
	}
	std::string s =
	    fmt::format("<!doctype html><html lang=en><meta charset=utf-8><title>{0}</title><style>{1}</style>\n"
	                "<h1>{0}</h1>\n<p class='verdict {2}'>{3}</p>\n",
	                escaped(title(run)), kStyle,
	                wrong   ? "bad"
	                : noted ? "note"
	                        : "good",
	                escaped(summary(run)));
	if (run.contains("version_note")) s += "<p>" + escaped(run["version_note"].get<std::string>()) + "</p>";
	s += "<nav>";
	for (size_t i = 0; i < run["devices"].size(); ++i)
		s += fmt::format("<a href='#device{}'>{}</a>", i, escaped(run["devices"][i]["label"].get<std::string>()));
	s += "</nav>\n" + html(parity_table(run));
	if (!findings.empty()) s += "<h2>Findings</h2><ul>" + findings + "</ul>\n";
	s += "<h2>Speed and memory</h2><div class=plots>";
	for (const Json& d : run["devices"]) s += speed_plot(d);
	s += memory_plot(run) + quality_plot(run);
	for (const Json& d : run["devices"]) s += op_bars(d);
	s += "</div>\n";
	for (const Table& t : {speed_table(run), tokens_table(run), quality_table(run), static_table(run), peer_table(run),
	                       devices_table(run)})
		s += html(t);
	for (size_t i = 0; i < run["devices"].size(); ++i) s += device_part(run["devices"][i], i);
	s += "<h2>Machine</h2>";
	if (run.contains("machine")) s += facts(run["machine"]);
	for (const Json& m : run.value("machines", Json::array())) s += facts(m);
	return s + "</html>\n";
}

} // namespace kvrun::comparison
