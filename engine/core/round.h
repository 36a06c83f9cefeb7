// Rounding of counts and sizes: whole pieces, and multiples of an alignment.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvrun {

// Device memory of one value of a struct of several begins at a multiple of this: every driver binds such offsets.
constexpr size_t kBufferAlign = 256;

// Pieces of `each` that hold n; n + each must not wrap.
template <class N, class E> constexpr N ceil_div(N n, E each) { return N((n + N(each) - 1) / N(each)); }

// The multiple of `to` at or after n; n + to must not wrap.
template <class N, class E> constexpr N align_up(N n, E to) { return N(ceil_div(n, to) * N(to)); }

} // namespace kvrun
