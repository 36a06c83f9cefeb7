// Commands about the installation itself: check whether it works, show its settings.
#pragma once
#include "tools/commands.h"

namespace kvrun {

void add_doctor(Command&);
void add_config(Command&);

} // namespace kvrun
