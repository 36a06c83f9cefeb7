// What the program does when it is about to end badly: no memory, or a crash inside a driver.
#pragma once

namespace kvrun {

// From before main() on, an allocation that fails and finds no handler, as in a destructor, ends the program with 4 and
// a line on stderr, without allocating. From this call on, a crash inside a library of a driver ends it with 4 and the
// library's name; one of its own is said to be, and ends it by its signal.
void install_last_words();
// The line for an allocation that failed, by write(2).
void say_out_of_memory() noexcept;

} // namespace kvrun
