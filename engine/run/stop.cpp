// Output text: split into whole characters, and ended by stop strings even if tokens split them.
#include "engine/run/stop.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <utility>

namespace kvrun {

static std::string whole_characters(std::string text) {
	text.resize(text.size() - utf8_unfinished(text));
	return text;
}

StopStream::StopStream(std::vector<std::string> stops) {
	if (stops.size() > kMaxStops) fail(Code::Invalid, "{} stop strings, at most {} are taken", stops.size(), kMaxStops);
	for (std::string& text : stops) {
		if (text.empty())
			fail(Code::Invalid, "a stop string is empty; it would end every answer before its first word");
		if (text.size() > kMaxStopBytes)
			fail(Code::Invalid, "a stop string has {} bytes, at most {} are taken", text.size(), kMaxStopBytes);
		Stop s{std::move(text), {}};
		s.fail.assign(s.text.size(), 0);
		for (size_t i = 1, k = 0; i < s.text.size(); ++i) { // Knuth, Morris, Pratt
			while (k > 0 && s.text[i] != s.text[k]) k = s.fail[k - 1];
			if (s.text[i] == s.text[k]) ++k;
			s.fail[i] = k;
		}
		stops_.push_back(std::move(s));
	}
}

std::string StopStream::feed(std::string_view bytes) {
	if (stopped()) return {};
	for (const char c : bytes) {
		held_ += c;
		for (size_t i = 0; i < stops_.size(); ++i) {
			Stop& s = stops_[i];
			while (s.seen > 0 && s.text[s.seen] != c) s.seen = s.fail[s.seen - 1];
			if (s.text[s.seen] == c) ++s.seen;
			if (s.seen < s.text.size()) continue;
			if (!stopped() || s.text.size() > stopped_by().size()) hit_ = int(i);
			s.seen = 0;
		}
		if (stopped()) {
			held_.resize(held_.size() - stopped_by().size());
			return whole_characters(std::exchange(held_, {}));
		}
	}
	size_t hold = utf8_unfinished(held_);
	for (const Stop& s : stops_) hold = std::max(hold, s.seen);
	// returned text ends with a whole character, even if a stop string begins inside one
	size_t give = held_.size() - hold;
	give -= utf8_unfinished(std::string_view(held_).substr(0, give));
	std::string out = held_.substr(0, give);
	held_.erase(0, give);
	return out;
}

std::string StopStream::finish() { return whole_characters(std::exchange(held_, {})); }

} // namespace kvrun
