// Rounding of counts and sizes.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvrun {

// Alignment of views inside a buffer, in bytes: every driver can bind such offsets.
constexpr size_t kBufferAlign = 256;

// n / each, rounded up; n + each must not wrap.
template <class N, class E> constexpr N ceil_div(N n, E each) { return N((n + N(each) - 1) / N(each)); }

// The smallest multiple of `to` that is at least n; n + to must not wrap.
template <class N, class E> constexpr N align_up(N n, E to) { return N(ceil_div(n, to) * N(to)); }

} // namespace kvrun
