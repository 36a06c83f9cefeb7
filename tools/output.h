// What several commands print: Markdown tables, and a device as JSON.
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
// A Markdown table whose columns line up: the first to the left, the others to the right. Rows have the same heads.
void print_table(const std::vector<std::vector<Column>>& rows);

// {name, driver, type, cpu}
Json device_json(const DeviceInfo&);
void print_json(const Json&); // bytes that are not UTF-8 have no place in JSON: they become U+FFFD

// What --json writes, for a man page.
Section json_section(std::vector<Entry> keys);

// Bytes for people: 312 B, 3.1 MiB.
std::string human_bytes(double bytes);
// How much smaller a cache is than in f16, for people: "same size as f16", "5.25 times smaller than f16".
std::string size_ratio(double ratio);

} // namespace kvrun
