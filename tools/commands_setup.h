// Commands about the installation itself: whether it works, and what is set.
#pragma once
#include "tools/commands.h"

namespace kvrun {

void add_doctor(Command&);
void add_config(Command&);

} // namespace kvrun
