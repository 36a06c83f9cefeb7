// Output shared by several commands: Markdown tables, JSON, sizes.
#include "tools/output.h"
#include "tools/terminal.h"
#include <algorithm>

namespace kvrun {

void print_table(const std::vector<std::vector<Column>>& rows) {
	if (rows.empty()) return;
	std::vector<size_t> width;
	for (const Column& c : rows[0]) width.push_back(std::max(c.head.size(), size_t(3)));
	for (const auto& row : rows)
		for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].cell.size());
	const auto cell = [&](size_t i, const std::string& s) {
		return i == 0 ? fmt::format(" {:<{}} |", s, width[i]) : fmt::format(" {:>{}} |", s, width[i]);
	};
	std::string head = "|", line = "|", body;
	for (size_t i = 0; i < width.size(); ++i) {
		head += cell(i, rows[0][i].head);
		line += std::string(width[i] + 1, '-') + (i == 0 ? "-|" : ":|");
	}
	for (const auto& row : rows) {
		body += "|";
		for (size_t i = 0; i < row.size(); ++i) body += cell(i, row[i].cell);
		body += "\n";
	}
	write_stdout(head + "\n" + line + "\n" + body);
}

Json device_json(const DeviceInfo& d) {
	return {{"name", d.name}, {"driver", d.driver}, {"type", d.type}, {"cpu", d.is_cpu}};
}

void print_json(const Json& j) { write_stdout(j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }

Section json_section(std::vector<Entry> keys) {
	return {"JSON", "One object. Keys stay; new ones may be added.", std::move(keys), /*man_only=*/true};
}

std::string human_bytes(double bytes) {
	const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	size_t u = 0;
	for (; bytes >= 1024 && u + 1 < std::size(units); ++u) bytes /= 1024;
	return fmt::format("{:.{}f} {}", bytes, u == 0 || bytes >= 100 ? 0 : 1, units[u]);
}

std::string size_ratio(double ratio) {
	if (ratio >= 1.005) return fmt::format("{:.2f} times smaller than f16", ratio);
	return ratio > 0.985 ? "same size as f16" : fmt::format("{:.2f} times larger than f16", 1 / ratio);
}

} // namespace kvrun
