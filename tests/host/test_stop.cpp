// Stop strings and characters split over tokens, against searching the whole text at once.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "engine/run/stop.h"
#include <algorithm>
#include <doctest/doctest.h>
#include <random>

using namespace kvrun;

namespace {
// The definition: the text before the stop string that is completed first, the longest of those completed together.
std::string cut_at_stop(const std::string& text, const std::vector<std::string>& stops) {
	for (size_t end = 1; end <= text.size(); ++end) {
		size_t longest = 0;
		for (const std::string& s : stops)
			if (s.size() <= end && text.compare(end - s.size(), s.size(), s) == 0)
				longest = std::max(longest, s.size());
		if (longest) return text.substr(0, end - longest);
	}
	return text;
}
} // namespace

TEST_CASE("T39 stop: a stop string is found wherever tokens split it") {
	for (size_t cut = 0; cut <= 9; ++cut) {
		StopStream s({"\nUser:"});
		const std::string text = "ab\nUser:c";
		std::string out = s.feed(text.substr(0, cut));
		out += s.feed(text.substr(cut));
		out += s.finish();
		CHECK(out == "ab");
		CHECK(s.stopped());
		CHECK(s.stopped_by() == "\nUser:");
		CHECK(s.feed("more") == "");
	}
}

TEST_CASE("T39 stop: what looked like a stop string and was none is released, at once or at the end") {
	StopStream s({"<|end|>"});
	CHECK(s.feed("a<|e") == "a");
	CHECK(s.feed("x") == "<|ex");
	CHECK(s.feed("<|en") == "");
	CHECK(s.finish() == "<|en");
	CHECK(!s.stopped());
}

TEST_CASE("T39 stop: any text, any splitting, any stop strings give the text before the first match") {
	std::mt19937 rng(3);
	const auto word = [&](size_t n) {
		std::string w;
		for (size_t i = 0; i < n; ++i) w += "ab\xc3\xa4"[rng() % 4]; // including halves of characters
		return w;
	};
	int stopped = 0;
	for (int round = 0; round < 20000; ++round) {
		std::vector<std::string> stops(rng() % 4);
		for (std::string& s : stops) s = word(1 + rng() % 6);
		const std::string text = word(rng() % 40);
		StopStream s(stops);
		std::string out;
		for (size_t at = 0; at < text.size();) {
			const size_t n = rng() % 4;
			out += s.feed(std::string_view(text).substr(at, n));
			at += n;
		}
		out += s.finish();
		CAPTURE(text);
		const std::string expected = cut_at_stop(text, stops);
		REQUIRE(out == expected.substr(0, expected.size() - expected.ends_with('\xc3'))); // no half of a character
		REQUIRE(s.stopped() == (expected.size() < text.size()));
		stopped += s.stopped();
	}
	CHECK(stopped > 1000);
	CHECK(stopped < 19000);
}

TEST_CASE("T39, T59 stop: characters leave whole or not at all, bytes that are none leave unchanged") {
	StopStream s({});
	CHECK(s.feed("\xf0\x9f") == "");
	CHECK(s.feed("\x98") == "");
	CHECK(s.feed("\x80!") == "\xf0\x9f\x98\x80!");
	CHECK(s.feed("\xff\x80") == "\xff\x80");
	CHECK(s.feed("\xc3(") == "\xc3(");       // cut off by another character
	CHECK(s.feed("\xed\xa0") == "\xed\xa0"); // a surrogate can never be completed
	CHECK(s.feed("\xe2\x82") == "");
	CHECK(s.finish() == ""); // it is no text without its end
	StopStream stopped({"END"});
	CHECK(stopped.feed("a\xe2\x82"
	                   "END") == "a");
}

TEST_CASE("T39 stop: limits") {
	CHECK_THROWS_WITH_AS(StopStream({"a", ""}), doctest::Contains("empty"), Error);
	CHECK_THROWS_WITH_AS(StopStream({std::string(1 << 20, 'x')}), doctest::Contains("1048576 bytes"), Error);
	CHECK_THROWS_WITH_AS(StopStream(std::vector<std::string>(10000, "x")), doctest::Contains("10000 stop strings"),
	                     Error);
	// the most and longest stop strings allowed, in text that almost matches: takes linear time
	std::vector<std::string> most(kMaxStops, std::string(kMaxStopBytes - 1, 'a') + "b");
	StopStream s(most);
	std::string out;
	const std::string text(20000, 'a');
	for (size_t at = 0; at < text.size(); at += 5) out += s.feed(std::string_view(text).substr(at, 5));
	CHECK(out.size() == text.size() - (kMaxStopBytes - 1));
	CHECK(out + s.finish() == text);
}

TEST_CASE("utf8: lengths agree with the table of Unicode 15, D92") {
	int valid = 0;
	for (uint32_t cp = 0; cp < 0x110000; ++cp) { // every code point, encoded here
		std::string c;
		const int more = cp < 0x80 ? 0 : cp < 0x800 ? 1 : cp < 0x10000 ? 2 : 3;
		constexpr uint32_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
		c.push_back(char(kLead[more] | cp >> (6 * more)));
		for (int i = more - 1; i >= 0; --i) c.push_back(char(0x80 | (cp >> (6 * i) & 63)));
		const bool surrogate = cp >= 0xd800 && cp < 0xe000;
		const size_t length = c.size();
		c.push_back('x');
		REQUIRE(utf8_char(c, 0) == (surrogate ? 0 : length));
		c.pop_back();
		if (surrogate) continue;
		++valid;
		REQUIRE(utf8_unfinished(c) == 0);
		for (size_t n = 1; n < c.size(); ++n) REQUIRE(utf8_unfinished(c.substr(0, n)) == n);
	}
	CHECK(valid == 0x110000 - 0x800);
	for (const char* bad : {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
	                        "\xf5\x80\x80\x80", "\x80", "\xff"})
		CHECK(utf8_char(bad, 0) == 0);
}
