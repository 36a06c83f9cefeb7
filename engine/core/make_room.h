// Reserves room for `more` elements, growing by 1/16 instead of doubling: for long-lived lists that count as memory.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvrun {

template <class T> void make_room(std::vector<T>& v, size_t more) {
	if (v.capacity() < v.size() + more) v.reserve(v.size() + std::max(more, v.size() / 16));
}

} // namespace kvrun
