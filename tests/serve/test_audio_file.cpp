// Sound files: what libsndfile reads, and damaged ones (golden/audio/tone.*).
#include "tests/support/assets.h"
#include "tools/api_call.h"
#include "tools/audio/audio_file.h"
#include "tools/image/image_file.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numbers>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

constexpr uint32_t kRate = 16000;
const fs::path kGolden = fs::path(test_root()) / "tests" / "golden" / "audio";
const char* const kTones[] = {"tone.wav", "tone.flac", "tone.ogg", "tone.opus", "tone.mp3"};
using File = std::vector<std::byte>;

// The status of what reading it throws; OK if nothing.
kvrun_status status_of(std::span<const std::byte> file, std::string* why = nullptr) {
	try {
		const std::vector<float> s = decode_audio(file, "x.wav", kRate);
		CHECK(!s.empty());
		CHECK(std::ranges::all_of(s, [](float v) { return std::isfinite(v); }));
		return KVRUN_OK;
	} catch (const StatusError& e) {
		if (why) *why = e.what();
		return e.status;
	}
}

// Whether the libraries were there when kvrun was built.
bool reads() {
	std::string why;
	if (status_of(file_bytes(kGolden / "tone.wav"), &why) != KVRUN_EUNSUPPORTED) return true;
	MESSAGE("skipped: " << why);
	return false;
}

double tone(double t) {
	return 0.4 * std::sin(2 * std::numbers::pi * 440 * t) + 0.2 * std::sin(2 * std::numbers::pi * 2500 * t);
}

void put(File& to, uint32_t v, int bytes) {
	for (int i = 0; i < bytes; ++i) to.push_back(std::byte(v >> 8 * i & 255));
}
void put(File& to, std::string_view text) {
	for (const char c : text) to.push_back(std::byte(c));
}

struct Wav {
	uint32_t rate = kRate, channels = 1, format = 3, bits = 32; // 3: floats
};
File wav(const Wav& w, const std::vector<float>& samples) {
	File out;
	const uint32_t data = uint32_t(samples.size() * 4), block = w.channels * w.bits / 8;
	put(out, "RIFF"), put(out, 36 + data, 4), put(out, "WAVEfmt "), put(out, 16, 4), put(out, w.format, 2);
	put(out, w.channels, 2), put(out, w.rate, 4), put(out, w.rate * block, 4), put(out, block, 2), put(out, w.bits, 2);
	put(out, "data"), put(out, data, 4);
	const auto bytes = std::as_bytes(std::span(samples));
	out.insert(out.end(), bytes.begin(), bytes.end());
	return out;
}

} // namespace

TEST_CASE("sound files: WAV, FLAC, Ogg and MP3 become one channel with the encoder's rate") {
	if (!reads()) return;
	for (const char* name : kTones) {
		CAPTURE(name);
		const std::vector<float> s = read_audio_file((kGolden / name).string(), kRate);
		CHECK(std::abs(double(s.size()) - kRate / 2.) < kRate * 0.06); // MP3 has whole frames
		// two tones, by their correlations, wherever they begin: a lossy file may have silence in front
		for (const auto& [hertz, loud] : {std::pair(440., 0.4), {2500., 0.2}, {1000., 0.}}) {
			double re = 0, im = 0;
			const size_t from = 2000, n = 4000; // whole periods of all
			for (size_t i = 0; i < n; ++i) {
				const double angle = 2 * std::numbers::pi * hertz * double(i) / kRate;
				re += s[from + i] * std::cos(angle), im += s[from + i] * std::sin(angle);
			}
			CAPTURE(hertz);
			CHECK(std::abs(2 * std::hypot(re, im) / double(n) - loud) < 0.02);
		}
	}
	for (const char* name : {"tone.wav", "tone.flac"}) { // without loss
		CAPTURE(name);
		const std::vector<float> s = read_audio_file((kGolden / name).string(), kRate);
		double worst = 0; // behind the ends, where a filter sees silence
		for (size_t i = 100; i + 100 < s.size(); ++i) worst = std::max(worst, std::abs(s[i] - tone(double(i) / kRate)));
		CHECK(worst < 1e-3);
	}
}

TEST_CASE("sound files: channels and rates") {
	if (!reads()) return;
	const std::vector<float> two = decode_audio(wav({.channels = 2}, {0.5f, 0.25f, -1, 1, 0, 1}), "x", kRate);
	CHECK(two == std::vector<float>{0.375f, 0, 0.5f});
	const auto refused = [](const File& file, const std::string& wanted, kvrun_status status = KVRUN_EUNSUPPORTED) {
		std::string why;
		CHECK(status_of(file, &why) == status);
		CHECK_MESSAGE(why.starts_with("x.wav: " + wanted), why);
		CHECK(why.find('\n') == why.npos);
	};
	refused(wav({.channels = 9}, std::vector<float>(18)), "the sound has 9 channels, at most 8 are read");
	refused(wav({.rate = 100}, std::vector<float>(18)), "the sound has 100 samples in a second, 1000 to 192000");
	refused(wav({.rate = 400000}, std::vector<float>(18)), "the sound has 400000 samples in a second");
	refused(wav({}, {}), "the sound cannot be read: it has no samples", KVRUN_EFORMAT);
	refused(wav({}, {0, std::numeric_limits<float>::infinity()}),
	        "the sound cannot be read: it has a sample that is not finite", KVRUN_EFORMAT);
	refused(wav({.rate = 1000}, std::vector<float>(kMostAudioSeconds * 1000 + 1)),
	        "the sound is longer than 60 minutes");
}

TEST_CASE("sound files: damaged ones and other formats are refused in one line") {
	if (reads())
		for (const char* name : kTones) {
			CAPTURE(name);
			const File whole = file_bytes(kGolden / name);
			for (size_t n = 0; n < whole.size(); n += 1 + n / 16) status_of(std::span(whole).first(n));
			uint32_t random = 1;
			for (int i = 0; i < 100; ++i) {
				File bad = whole;
				for (int k = 0; k < 3; ++k) {
					random = random * 1664525 + 1013904223;
					bad[random % bad.size() % (k ? bad.size() : 64)] ^= std::byte(1 << (random >> 20 & 7));
				}
				const kvrun_status s = status_of(bad);
				CHECK((s == KVRUN_OK || s == KVRUN_EFORMAT || s == KVRUN_EUNSUPPORTED));
			}
		}
	std::string why;
	const auto text = [](std::string_view t) { return std::as_bytes(std::span(t)); };
	CHECK(status_of(text("\x1a\x45\xdf\xa3webm"), &why) == KVRUN_EUNSUPPORTED);
	CHECK(why == "x.wav: it is neither WAV, FLAC, Ogg nor MP3; convert the sound to one of these");
	CHECK(status_of({}) == KVRUN_EUNSUPPORTED);
	CHECK(status_of(text("\x89PNG\r\n\x1a\n"), &why) == KVRUN_EUNSUPPORTED);
	CHECK(why == "x.wav: it is an image (PNG), no sound; give it as an image");
	CHECK_THROWS_WITH(decode_image(file_bytes(kGolden / "tone.mp3"), "x.png"),
	                  "x.png: it is a sound (MP3), no image; give it as audio");
	CHECK_THROWS_AS(read_audio_file("/nowhere.wav", kRate), StatusError);
}
