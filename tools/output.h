// Output shared by several commands: Markdown tables, JSON, sizes.
#pragma once
#include "backends/backend.h"
#include "tools/args.h"
#include "tools/json_text.h"
#include <chrono>
#include <string>
#include <vector>

namespace kvrun {

using Json = nlohmann::ordered_json;

struct Column { // one cell of a row, and the head of its column
	std::string head, cell;
};
// Prints a Markdown table; the first column is left-aligned, the others right-aligned. All rows have the same heads.
void print_table(const std::vector<std::vector<Column>>& rows);

// {name, driver, type, cpu}
Json device_json(const DeviceInfo&);
void print_json(const Json&); // replaces bytes that are not valid UTF-8 by U+FFFD

// Man page section that describes the output of --json.
Section json_section(std::vector<Entry> keys);

inline double per_second(double n, double seconds) { return seconds > 0 ? n / seconds : 0; }
inline double seconds_since(std::chrono::steady_clock::time_point start) {
	return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
// Human-readable: 312 B, 3.1 MiB.
std::string human_bytes(double bytes);
// Size relative to f16: "same size as f16", "5.25 times smaller than f16".
std::string size_ratio(double ratio);

} // namespace kvrun
