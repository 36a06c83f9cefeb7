// Which devices have the current bytes of each range of a buffer that exists on several devices.
#pragma once
#include "engine/core/error.h"
#include <cstddef>
#include <cstdint>
#include <map>

namespace kvrun {

class Holders {
 public:
	using Mask = uint32_t; // bit d: device d

	explicit Holders(Mask all) { from_[0] = all; }
	void set(size_t from, size_t to, Mask m) {
		if (from >= to) return;
		split(to);
		split(from);
		from_.erase(from_.upper_bound(from), from_.lower_bound(to));
		from_[from] = m;
		join(to);
		join(from);
	}
	// f(from, to, mask) for each part of [from, to), ascending; no two neighbours have the same mask.
	template <class F> void each(size_t from, size_t to, F f) const {
		auto it = --from_.upper_bound(from);
		while (from < to) {
			const auto next = std::next(it);
			const size_t end = next == from_.end() ? to : next->first < to ? next->first : to;
			f(from, end, it->second);
			from = end, it = next;
		}
	}
	// The devices that have all of [from, to).
	Mask common(size_t from, size_t to) const {
		Mask m = ~Mask(0);
		each(from, to, [&](size_t, size_t, Mask here) { m &= here; });
		return m;
	}
	size_t ranges() const { return from_.size(); }

 private:
	void split(size_t at) { from_.try_emplace(at, (--from_.upper_bound(at))->second); }
	void join(size_t at) { // with the range before it
		const auto it = from_.find(at);
		if (it != from_.begin() && it != from_.end() && std::prev(it)->second == it->second) from_.erase(it);
	}
	std::map<size_t, Mask> from_; // first byte of a range, up to the next one
};

} // namespace kvrun
