// Last messages of the program on fatal errors: out of memory, or a crash inside a driver.
#pragma once

namespace kvrun {

// Even before main(), a failed allocation without a handler, as in a destructor, ends the program with exit code 4 and
// a line on stderr, without allocating. From this call on, a crash inside a library of a driver ends it with 4 and the
// library's name. A crash in the program's own code is reported as such and ends it by its signal.
void install_last_words();
// Prints the line for a failed allocation with write(2).
void say_out_of_memory() noexcept;

} // namespace kvrun
