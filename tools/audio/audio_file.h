// Sound files: WAV, FLAC, Ogg (Vorbis, Opus) and MP3, if their library was there when kvrun was built.
#pragma once
#include "engine/kvrun.h"
#include <span>
#include <string>
#include <vector>

namespace kvrun {

constexpr size_t kMostAudioBytes = size_t(64) << 20; // of a file
constexpr uint32_t kMostAudioSeconds = 3600;         // of a sound

// The name of the format that a file begins like; null: of none of these.
const char* audio_format(std::span<const std::byte> file);
// Samples in -1 .. 1 of one channel, the mean of the file's, `rate` in a second. name: for messages. Throws
// StatusError{KVRUN_EFORMAT} if the file is damaged or has no samples, EUNSUPPORTED for another format, a library that
// was absent, and a sound that is too long.
std::vector<float> decode_audio(std::span<const std::byte> file, const std::string& name, uint32_t rate);
std::vector<float> read_audio_file(const std::string& path, uint32_t rate); // also throws EIO and ENOTFOUND
// Adds a sound to an engine; the id that messages name it by. Throws StatusError.
std::string add_audio(kvrun_engine*, std::span<const float> samples);

} // namespace kvrun
