// The tables of a report, as text with colours; Markdown and HTML print the same tables.
#pragma once
#include "tools/compare/compare.h"

namespace kvrun::comparison {

enum class Mark : uint8_t { None, Good, Note, Bad };
struct Cell {
	std::string text;
	Mark mark = Mark::None;
	std::string hint = {}; // tooltip
};
struct Table {
	std::string title;
	std::vector<std::string> heads;
	std::vector<std::vector<Cell>> rows;
};

std::string title(const Json& run);
std::string summary(const Json& run); // one sentence: devices agree, or what differs
Table devices_table(const Json& run);
Table parity_table(const Json& run); // operation, policy or check x device
Table tokens_table(const Json& run);
Table speed_table(const Json& run);
Table quality_table(const Json& run);
Table static_table(const Json& run);
Table peer_table(const Json& run);
Table ops_table(const Json& device); // of one device, with its histogram of errors

// A stage's result; null if it has none.
const Json* find(const Json& stages, const char* stage);
// A list in a stage's result; empty if there is none.
const Json& list(const Json& stages, const char* stage, const char* key);

} // namespace kvrun::comparison
