// Edit distance of two words, for "did you mean".
#pragma once
#include <cstddef>
#include <string_view>

namespace kvrun {

// Fewest insertions, deletions, substitutions and swaps of neighbouring bytes that turn `a` into `b` (optimal string
// alignment). Takes a.size() * b.size() steps; callers must limit the length of words from outside.
size_t edit_distance(std::string_view a, std::string_view b);

} // namespace kvrun
