// How much a command says beside its result: -q, -v, and flags of llama.cpp that change nothing here.
#pragma once
#include "tools/args.h"

namespace kvrun {

void add_says(Command&);
// From now on neither progress nor lines that begin with "# " are shown.
void be_quiet();

} // namespace kvrun
