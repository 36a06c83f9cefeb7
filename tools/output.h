// What several commands print: Markdown tables, JSON, sizes.
#pragma once
#include "backends/backend.h"
#include "tools/args.h"
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvrun {

using Json = nlohmann::ordered_json;

struct Column { // one cell of a row, and what its column is called
	std::string head, cell;
};
// A Markdown table with aligned columns, the first to the left, the others to the right. All rows have the same heads.
void print_table(const std::vector<std::vector<Column>>& rows);

// {name, driver, type, cpu}
Json device_json(const DeviceInfo&);
void print_json(const Json&); // replaces bytes that are not valid UTF-8 by U+FFFD

// What --json writes, for a man page.
Section json_section(std::vector<Entry> keys);

// Human-readable: 312 B, 3.1 MiB.
std::string human_bytes(double bytes);
// Size relative to f16: "same size as f16", "5.25 times smaller than f16".
std::string size_ratio(double ratio);

} // namespace kvrun
