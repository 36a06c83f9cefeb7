// How much a command prints besides its result: -q, -v, and llama.cpp's flags that have no effect here.
#pragma once
#include "tools/args.h"

namespace kvrun {

void add_says(Command&);
bool is_verbose(); // -v, or KVRUN_LOG
// Turns off progress bars and lines that begin with "# " from now on.
void be_quiet();
class Loud { // while it lives, nothing is quiet
 public:
	Loud();
	~Loud();
	Loud(const Loud&) = delete;

 private:
	bool was_quiet_;
};

} // namespace kvrun
