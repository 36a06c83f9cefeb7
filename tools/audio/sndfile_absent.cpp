// Sound files, where libsndfile or libsamplerate was absent at build time.
#include "tools/api_call.h"
#include "tools/audio/decode.h"
#include "tools/text.h"

namespace kvrun {

std::vector<float> decode_sndfile(std::span<const std::byte> file, const std::string& name, uint32_t) {
	fail_status(KVRUN_EUNSUPPORTED, "{}: this kvrun was built without libsndfile or libsamplerate, which read {}", name,
	            audio_format(file));
}

} // namespace kvrun
