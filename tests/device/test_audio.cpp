// Audio encoders on every device, beside HF transformers (golden/audio, tools/dev/make_audio_models.py).
#include "engine/core/npy.h"
#include "engine/run/session.h"
#include "tests/support/assets.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/each_device.h"
#include "tests/support/errors.h"
#include "tests/support/rig.h"
#include "tests/support/sound.h"
#include <doctest/doctest.h>
#include <filesystem>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

const fs::path kGolden = fs::path(test_root()) / "tests" / "golden";
const std::vector<uint32_t> kBefore = {1, 17, 200, 45}, kAfter = {9, 150, 33, 71, 12, 250};

struct Row {
	const char* name;
	double seconds;
};
constexpr Row kRows[] = {{"voxtral", 1.303},       {"ultravox", 1.303},       {"qwen2a", 1.303},  {"qwen2.5o", 5.1},
                         {"qwen3a", 9.302},        {"gemma4a", 1.303},        {"gemma4ua", 0.31}, {"glma", 1.303},
                         {"musicflamingo", 1.303}, {"granite_speech", 21.103}};

std::vector<float> sound_of(const Row& r) { return test_sound(uint32_t(r.seconds * kSampleRate)); }
std::string encoder_file(const std::string& name) { return (kGolden / "audio" / (name + ".gguf")).string(); }
std::string model_of(const std::string& name) {
	return (kGolden / "tiny" / (name.starts_with("gemma4") ? "gemma4.gguf" : "llama.gguf")).string();
}

std::unique_ptr<Engine> open(const std::string& device, const std::string& name) {
	EngineOptions o;
	o.model = model_of(name);
	o.backend = select_test_device(device);
	o.mmproj = encoder_file(name);
	return Engine::open(o);
}

} // namespace

TEST_CASE("audio: the rows of every encoder are those of transformers") {
	CHECK(std::size(kRows) == audio_projectors().size());
	on_every_device([&](const std::string& device) {
		for (size_t i = 0; i < std::size(kRows); ++i) {
			if (!row_wanted(i)) continue;
			CAPTURE(kRows[i].name);
			const auto e = open(device, kRows[i].name);
			AudioEncoder& encoder = e->images()->audio();
			std::vector<float> got;
			for (const AudioPiece& piece : cut_audio(encoder.config(), sound_of(kRows[i]))) {
				const TileRows rows = encoder.encode(piece);
				CHECK(rows.rows.size() == size_t(encoder.config().rows(piece.frames)) * encoder.config().out_dim);
				got.insert(got.end(), rows.rows.begin(), rows.rows.end());
			}
			const NpyArray want = npy_read(kGolden / "audio" / (std::string(kRows[i].name) + ".rows.npy"));
			REQUIRE(got.size() == want.as<float>().size());
			const double error = relative_difference(got, want.as<float>());
			CHECK(error < logits_tolerance(e->backend(), "llama", /*decode=*/false));
		}
	});
}

TEST_CASE("audio: a prompt has the same logits however it is cut, and goes on") {
	on_every_device([&](const std::string& device) {
		const auto e = open(device, "qwen2a");
		ImageStore& store = *e->images();
		const std::vector<float> sound = sound_of(kRows[2]);
		const uint64_t id = store.add(sound);
		CHECK(store.add(sound) == id);
		std::vector<uint32_t> tokens = kBefore;
		const std::vector<uint32_t> rows = store.tokens(id);
		CHECK(std::ranges::count_if(rows, is_audio_row) == 33);
		tokens.insert(tokens.end(), rows.begin(), rows.end());
		tokens.insert(tokens.end(), kAfter.begin(), kAfter.end());
		Session whole(*e, {.ctx = 128});
		const std::vector<float> want = logits_of(whole, tokens);
		whole.decode(7);
		for (const size_t cut : {size_t(6), size_t(20), tokens.size() - 3}) {
			Session s(*e, {.ctx = 128});
			std::vector<float> got = logits_of(s, std::span(tokens).first(cut));
			const std::vector<float> rest = logits_of(s, std::span(tokens).subspan(cut));
			got.insert(got.end(), rest.begin(), rest.end());
			CHECK(relative_difference(got, want) < logits_tolerance(e->backend(), "llama", /*decode=*/false));
		}
		std::vector<float> louder = sound; // another sound has other rows
		for (float& x : louder) x *= -1.1f;
		louder[5] = 0.9f;
		std::vector<uint32_t> other = kBefore;
		const std::vector<uint32_t> more = store.tokens(store.add(louder));
		other.insert(other.end(), more.begin(), more.end());
		other.insert(other.end(), kAfter.begin(), kAfter.end());
		Session s(*e, {.ctx = 128});
		CHECK(relative_difference(logits_of(s, other), want) > 1e-3);
	});
}

TEST_CASE("audio: long sounds are cut into pieces, sounds that are too short are refused") {
	const auto e = open("cpu", "voxtral");
	const AudioConfig& c = e->images()->audio().config();
	const auto frames = [&](double seconds) {
		std::vector<uint32_t> out;
		for (const AudioPiece& p : cut_audio(c, test_sound(uint32_t(seconds * kSampleRate)))) out.push_back(p.frames);
		return out;
	};
	CHECK(frames(0.01) == std::vector<uint32_t>{3000});
	CHECK(frames(30) == std::vector<uint32_t>{3000});
	CHECK(frames(30.01) == std::vector<uint32_t>{3000, 3000});
	CHECK(c.rows(3000) == 375);
	const auto short_ones = open("cpu", "gemma4a");
	CHECK(error_of([&] {
		      short_ones->images()->add(std::span<const float>(test_sound(160)));
	      }).find("a sound of 160 samples (10 ms) is too short") != std::string::npos);
	short_ones->images()->add(std::span<const float>(test_sound(161)));
	CHECK(error_of([&] { short_ones->images()->add(std::span<const float>()); }).find("too short") !=
	      std::string::npos);
	const auto parts = open("cpu", "qwen3a"); // parts, and pieces of 32
	std::vector<uint32_t> rows;
	for (const AudioPiece& p : cut_audio(parts->images()->audio().config(), test_sound(40 * kSampleRate + 1)))
		rows.push_back(parts->images()->audio().config().rows(p.frames));
	CHECK(rows == std::vector<uint32_t>{32 * 13, 8 * 13 + 1});
	const auto seen = open("cpu", "glma"); // rows of silence are left out
	rows.clear();
	for (const AudioPiece& p : cut_audio(seen->images()->audio().config(), test_sound(40 * kSampleRate + 1))) {
		CHECK(p.spectrogram.frames == 3000);
		rows.push_back(seen->images()->audio().config().rows(p.frames));
	}
	CHECK(rows == std::vector<uint32_t>{375, 125});
	const auto whole = open("cpu", "granite_speech"); // frames are two of others
	CHECK(frames_of(Features::Log10MelPairs, 480, 64) == 2);
	CHECK(frames_of(Features::Log10MelPairs, 479, 64) == 1);
	rows.clear();
	for (const AudioPiece& p : cut_audio(whole->images()->audio().config(), test_sound(241 * kSampleRate)))
		rows.push_back(whole->images()->audio().config().rows(p.frames));
	CHECK(rows == std::vector<uint32_t>{12000 / 15 * 3, 4 * 3});
}
