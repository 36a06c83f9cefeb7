// A search over all conversations, whose results are kept until the words or a conversation change.
#include "tools/desktop/search.h"
#include <utility>

namespace kvrun::desktop {

const std::optional<Hit>& Search::in(const Conversation& c, const std::string& words) {
	if (words != words_) seen_.clear();
	words_ = words;
	const size_t bytes = c.messages.empty() ? 0 : c.messages.back().text.size();
	const auto [at, added] = seen_.try_emplace(c.id);
	Seen& s = at->second;
	if (!added && s.title == c.title && s.messages == c.messages.size() && s.last_bytes == bytes) return s.hit;
	s = {c.title, c.messages.size(), bytes, look_(c, words)};
	return s.hit;
}

} // namespace kvrun::desktop
