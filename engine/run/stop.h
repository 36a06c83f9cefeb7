// Output text: split into whole characters, and ended by stop strings even if tokens split them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

constexpr size_t kMaxStops = 256;      // stop strings per answer
constexpr size_t kMaxStopBytes = 4096; // bytes of one stop string

// Takes the bytes of each token in turn and returns what may be shown: never part of a stop string, never part of a
// character. Bytes that are not UTF-8 pass unchanged. Work per byte is proportional to the number of stops.
class StopStream {
 public:
	// Throws Error{Invalid} for an empty or overlong stop string and for too many of them.
	explicit StopStream(std::vector<std::string> stops);

	// Returns the text that can be shown after these bytes. Everything from the first completed stop string on is
	// dropped; of several completed by the same byte the longest counts.
	std::string feed(std::string_view bytes);
	// Call at the end of the text: returns what was held back in case a stop string would be completed. The beginning
	// of a character that was not completed is dropped: a reader of UTF-8 could not read the text with it.
	std::string finish();

	bool stopped() const { return hit_ >= 0; }
	const std::string& stopped_by() const { return stops_[size_t(hit_)].text; } // only after stopped()
	uint32_t stopped_at() const { return uint32_t(hit_); }                      // its index; only after stopped()

 private:
	struct Stop {
		std::string text;
		std::vector<size_t> fail; // (text bytes): length of the longest proper prefix that is a suffix of text[0..i]
		size_t seen = 0;          // length of the prefix of text that matches the end of the input
	};
	std::vector<Stop> stops_;
	std::string held_; // bytes not returned yet
	int hit_ = -1;     // index of the stop string found
};

} // namespace kvrun
