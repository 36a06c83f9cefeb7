// What reads the samples of a sound file; refuses all where its libraries were absent at build time.
#pragma once
#include "tools/audio/audio_file.h"

namespace kvrun {

std::vector<float> decode_sndfile(std::span<const std::byte>, const std::string& name, uint32_t rate);

[[noreturn]] void damaged_audio(const std::string& name, std::string_view why);
[[noreturn]] void long_audio(const std::string& name);

} // namespace kvrun
