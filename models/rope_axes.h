// Positions with several numbers: which channels turn by which (Rope::axes).
#pragma once
#include "models/config_keys.h"
#include "models/families.h"

namespace kvrun {

// Sets r.axes, and what else follows from them; needs r.dim and r.theta.
void read_axes(const ConfigKeys&, const Family&, Rope& r);

} // namespace kvrun
