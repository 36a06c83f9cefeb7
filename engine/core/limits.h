// Limits that the C API, the program's options and session files share.
#pragma once
#include <cstdint>

namespace kvrun {

constexpr uint32_t kMaxContext = 1u << 24; // tokens of a sequence
constexpr uint32_t kMaxUbatch = 65536;     // rows

} // namespace kvrun
