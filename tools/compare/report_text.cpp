// The report as CSV, one number per row, and as Markdown.
#include "tools/compare/compare.h"
#include "tools/compare/tables.h"

namespace kvrun::comparison {
namespace {

std::string csv_cell(const std::string& s) {
	if (s.find_first_of(",\"\n") == s.npos) return s;
	std::string out = "\"";
	for (const char c : s) out += c == '"' ? "\"\"" : std::string(1, c);
	return out + "\"";
}

std::string markdown(const Table& t) {
	if (t.rows.empty()) return "";
	std::string s = fmt::format("\n## {}\n\n", t.title);
	const auto line = [](const std::vector<std::string>& cells) {
		std::string l = "|";
		for (std::string c : cells) {
			for (size_t at = 0; (at = c.find('|', at)) != c.npos; at += 2) c.replace(at, 1, "\\|");
			l += " " + c + " |";
		}
		return l + "\n";
	};
	s += line(t.heads);
	s += "|";
	for (size_t i = 0; i < t.heads.size(); ++i) s += i ? "---:|" : "---|";
	s += "\n";
	for (const auto& row : t.rows) {
		std::vector<std::string> cells;
		for (const Cell& c : row) cells.push_back(c.text);
		s += line(cells);
	}
	return s;
}

} // namespace

std::string results_csv(const Json& run) {
	std::string out = "device,stage,policy,name,metric,value\n";
	const auto add = [&](const Json& d, const char* stage, const std::string& policy, const std::string& name,
	                     const char* metric, const Json& value) {
		if (value.is_number())
			out += fmt::format("{},{},{},{},{},{}\n", csv_cell(d["label"]), stage, csv_cell(policy), csv_cell(name),
			                   metric, value.dump());
	};
	for (const Json& d : run["devices"]) {
		const Json& stages = d["stages"];
		for (const Json& op : list(stages, "ops", "ops"))
			for (const char* metric : {"elements", "bad", "max_error", "share_of_tolerance"})
				add(d, "ops", "", op["op"], metric, op[metric]);
		for (const Json& t : list(stages, "speed", "results")) {
			for (const char* metric : {"tok_s_median", "tok_s_min", "tok_s_max", "kv_bytes", "kv_device_bytes"})
				add(d, "speed", t["kv"], t["test"], metric, t[metric]);
			for (const Json& sample : t["tok_s"]) add(d, "speed", t["kv"], t["test"], "tok_s", sample);
		}
		if (const Json* q = find(stages, "quality"))
			for (const char* part : {"text", "recall"})
				for (const Json& r : (*q)[part]["results"])
					for (const auto& [key, value] : r.items()) add(d, "quality", r["policy"], part, key.c_str(), value);
	}
	return out;
}

std::string report_markdown(const Json& run) {
	std::string s = fmt::format("# {}\n\n{}\n", title(run), summary(run));
	if (run.contains("version_note")) s += "\n" + run["version_note"].get<std::string>() + "\n";
	for (const Json& f : run["findings"])
		s += fmt::format("- **{}** {}, {}: {}\n", f["level"].get<std::string>(), f["device"].get<std::string>(),
		                 f["stage"].get<std::string>(), f["text"].get<std::string>());
	for (const Table& t : {devices_table(run), parity_table(run), tokens_table(run), speed_table(run),
	                       quality_table(run), static_table(run), peer_table(run)})
		s += markdown(t);
	return s;
}

} // namespace kvrun::comparison
