// Calls whose arguments lie between tags, each by itself.
#pragma once
#include "models/chat/calls.h"

namespace kvrun {

// Markers around a name, then pairs of a key and a value. The first marker of all may be missing before a name that has
// a marker of its own; what follows the name must then show that this is a call.
struct PairForm {
	std::string_view name_begin, name_end, key_begin, key_end, value_begin, value_end, end;
};
// For read_calls(): as it says, of one form.
size_t read_pairs(const CallForm&, const PairForm&, std::string_view text, bool last, std::vector<FoundCall>& out);
size_t read_minimax(const CallForm&, std::string_view text, bool last, std::vector<FoundCall>& out);
size_t read_xtml(const CallForm&, std::string_view text, bool last, std::vector<FoundCall>& out);

} // namespace kvrun
