// Room for `more` elements, as vectors grow by themselves, but by a sixteenth: for lists that stay and count as memory.
#pragma once
#include <algorithm>
#include <cstddef>
#include <vector>

namespace kvrun {

template <class T> void make_room(std::vector<T>& v, size_t more) {
	if (v.capacity() < v.size() + more) v.reserve(v.size() + std::max(more, v.size() / 16));
}

} // namespace kvrun
