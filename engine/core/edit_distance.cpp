// Edit distance of two words, for "did you mean".
#include "engine/core/edit_distance.h"
#include <algorithm>
#include <vector>

namespace kvrun {

size_t edit_distance(std::string_view a, std::string_view b) {
	// rows for the prefixes of `a` with i - 2, i - 1 and i bytes
	std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
	for (size_t j = 0; j <= b.size(); ++j) now[j] = j;
	for (size_t i = 1; i <= a.size(); ++i) {
		before.swap(last), last.swap(now);
		now[0] = i;
		for (size_t j = 1; j <= b.size(); ++j) {
			now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = std::min(now[j], before[j - 2] + 1);
		}
	}
	return now[b.size()];
}

} // namespace kvrun
