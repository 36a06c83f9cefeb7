// A search over all conversations, whose results are kept until the words or a conversation change.
#pragma once
#include "tools/desktop/conversation.h"
#include <functional>
#include <map>
#include <optional>

namespace kvrun::desktop {

struct Hit {
	int message = kNone; // that has the words; none: the title has them
	std::string text;    // around the words
};

class Search {
 public:
	// look: where a conversation has the words; nullopt: nowhere.
	using Look = std::function<std::optional<Hit>(const Conversation&, const std::string& words)>;
	explicit Search(Look look) : look_(std::move(look)) {}
	const std::optional<Hit>& in(const Conversation&, const std::string& words);

 private:
	struct Seen { // a conversation when it was searched
		std::string title;
		size_t messages = 0, last_bytes = 0; // only the last message grows
		std::optional<Hit> hit;
	};
	Look look_;
	std::string words_;
	std::map<std::string, Seen> seen_; // by conversation
};

} // namespace kvrun::desktop
