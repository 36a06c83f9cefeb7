// "Memory for conversations": cache policies from quality to length, described in a user's words.
#include "tools/desktop/memory_choices.h"
#include <algorithm>

namespace kvrun::desktop {

const std::vector<MemoryChoice>& memory_choices() {
	static const std::vector<MemoryChoice> all = {
	    {"fp16", "Full", "Everything is kept as it was computed.", 0, 1},
	    {"rtn8", "Very high", "Half the memory, and no difference you could notice.", 0.0001, 0.997},
	    {"turbo4", "High", "A quarter of the memory; answers rarely differ.", 0.0027, 0.980},
	    {"turbo3/2", "Balanced", "A sixth of the memory; some words differ.", 0.0171, 0.944},
	    {"turbo2", "Compact", "A seventh of the memory; details of long texts begin to blur.", 0.0484, 0.901},
	    {"turbo2/1", "Longest", "A ninth of the memory, for the longest texts; details get lost.", 0.0926, 0.861},
	};
	return all;
}

int memory_choice_of(const std::string& kv) {
	const auto& all = memory_choices();
	const auto at = std::ranges::find(all, kv, &MemoryChoice::kv);
	return at == all.end() ? -1 : int(at - all.begin());
}

} // namespace kvrun::desktop
