// The tables of filters, tests, methods and functions, each defined in the file that implements them.
#pragma once
#include "models/jinja/lib/builtins.h"

namespace kvrun::jinja {

std::span<const Builtin> text_filters(); // filters_text.cpp
std::span<const Builtin> list_filters(); // filters_list.cpp
std::span<const Builtin> tests();
std::span<const Builtin> functions();
std::span<const Builtin> methods(Kind); // of values of this kind; empty: none

} // namespace kvrun::jinja
