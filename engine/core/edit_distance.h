// How far apart two words are, for "did you mean".
#pragma once
#include <cstddef>
#include <string_view>

namespace kvrun {

// Fewest insertions, deletions, substitutions and swaps of neighbouring bytes that turn `a` into `b` (optimal string
// alignment). Takes a.size() * b.size() steps; callers bound the words they get from outside.
size_t edit_distance(std::string_view a, std::string_view b);

} // namespace kvrun
