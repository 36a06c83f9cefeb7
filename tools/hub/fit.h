// Chooses the model of a repository that fits a device, by the computation of kvrun plan.
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

// The model that is most likely to be chosen, by sizes alone: its header describes the others too. Null: none.
const HubModel* guess_model(const std::vector<HubModel>&, const DeviceInfo&);

// The largest model that leaves room for the cache of a useful context. config, parameters: of any of the models, which
// differ only in the precision of weights; without them, sizes decide.
Fit choose_model(const std::vector<HubModel>&, const DeviceInfo&, const Config*, uint64_t parameters);

} // namespace kvrun
