// Sound files in memory.
#include "tools/audio/audio_file.h"
#include "engine/core/utf8.h"
#include "tools/api_call.h"
#include "tools/audio/decode.h"
#include "tools/image/image_file.h"
#include "tools/text.h"
#include "tools/user_files.h"
#include <cstring>

namespace kvrun {
namespace {

using SoundFile = std::span<const std::byte>;

struct SoundFormat {
	const char* name;
	bool (*begins)(SoundFile);
};

bool holds(SoundFile file, size_t at, std::string_view text) {
	return file.size() >= at + text.size() && std::memcmp(file.data() + at, text.data(), text.size()) == 0;
}

// A frame of layer III, of MPEG 1, 2 or 2.5: 11 bits set, the version (01: none), the layer (01).
bool begins_mp3_frame(SoundFile f) {
	if (f.size() < 2) return false;
	const unsigned second = unsigned(f[1]);
	return f[0] == std::byte(0xff) && (second & 0xe6) == 0xe2 && (second & 0x18) != 0x08;
}

constexpr SoundFormat kSoundFormats[] = {
    {"WAV", [](SoundFile f) { return (holds(f, 0, "RIFF") || holds(f, 0, "RF64")) && holds(f, 8, "WAVE"); }},
    {"FLAC", [](SoundFile f) { return holds(f, 0, "fLaC"); }},
    {"Ogg", [](SoundFile f) { return holds(f, 0, "OggS"); }},
    {"MP3", [](SoundFile f) { return holds(f, 0, "ID3") || begins_mp3_frame(f); }},
};

} // namespace

void damaged_audio(const std::string& name, std::string_view why) {
	fail_status(KVRUN_EFORMAT, "{}: the sound cannot be read: {}", name, one_line(why));
}

void long_audio(const std::string& name) {
	fail_status(KVRUN_EUNSUPPORTED, "{}: the sound is longer than {} minutes; give it in parts", name,
	            kMostAudioSeconds / 60);
}

const char* audio_format(SoundFile file) {
	for (const SoundFormat& f : kSoundFormats)
		if (f.begins(file)) return f.name;
	return nullptr;
}

std::vector<float> decode_audio(SoundFile file, const std::string& name, uint32_t rate) {
	const char* format = audio_format(file);
	if (const char* image = image_format(file); image && !format)
		fail_status(KVRUN_EUNSUPPORTED, "{}: it is an image ({}), no sound; give it as an image", name, image);
	if (!format)
		fail_status(KVRUN_EUNSUPPORTED, "{}: it is neither WAV, FLAC, Ogg nor MP3; convert the sound to one of these",
		            name);
	return decode_sndfile(file, name, rate);
}

std::vector<float> read_audio_file(const std::string& path, uint32_t rate) {
	const std::string file = read_text_file(path, kMostAudioBytes);
	return decode_audio(std::as_bytes(std::span(file)), path, rate);
}

std::string add_audio(kvrun_engine* engine, std::span<const float> samples) {
	uint64_t id = 0;
	check_call(kvrun_audio_add(engine, samples.data(), samples.size(), &id));
	return fmt::format("{:016x}", id);
}

} // namespace kvrun
