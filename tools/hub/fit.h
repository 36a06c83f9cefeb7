// Which model of a repository fits a device, by what kvrun plan computes.
#pragma once
#include "backends/backend.h"
#include "models/config.h"
#include "tools/hub/names.h"
#include <optional>
#include <string>
#include <vector>

namespace kvrun {

struct Fit {
	const HubModel* model = nullptr; // null: none fits
	std::string why;                 // "Q8_0, 138 MiB: the largest of .."
};

// The size that is most likely to be chosen, by sizes alone: its beginning says what the others are. Null: none.
const HubModel* guess_model(const std::vector<HubModel>&, const DeviceInfo&);

// The largest that leaves room for the cache of a useful context. config, parameters: of any of them, which differ in
// the precision of their weights alone; without, sizes decide.
Fit choose_model(const std::vector<HubModel>&, const DeviceInfo&, const Config*, uint64_t parameters);

} // namespace kvrun
