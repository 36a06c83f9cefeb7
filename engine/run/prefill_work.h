// Work of prompts, estimated as the number of multiplies and adds.
#pragma once
#include "models/config.h"

namespace kvrun {

double move_work(const Layer&); // of one token's keys and values, when they go into pages

} // namespace kvrun
