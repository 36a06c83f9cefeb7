// Images and sounds in the C API.
#include "engine/api/images.h"
#include <algorithm>
#include <cmath>

namespace kvrun::api {

ImageStore& images_of(const EngineObject& e) {
	if (!e.engine->images())
		refuse(KVRUN_EUNSUPPORTED, "this model reads no images and no sounds: its encoder was not given (mmproj)");
	return *e.engine->images();
}

// For adding an image or a sound.
static ImageStore& store_of(const EngineObject& e, bool (ImageStore::*reads)() const, const char* what,
                            const char* encoder) {
	ImageStore* const store = e.engine->images();
	if (!store || !(store->*reads)())
		refuse(KVRUN_EUNSUPPORTED, "this model reads no {}: its {} encoder was not given (mmproj)", what, encoder);
	return *store;
}

} // namespace kvrun::api

using namespace kvrun;
using namespace kvrun::api;

kvrun_status kvrun_image_add(kvrun_engine* engine, const uint8_t* rgb, uint32_t width, uint32_t height,
                             uint64_t* out_id) {
	return guard([&] {
		check_pointer(rgb, "rgb");
		check_pointer(out_id, "out_id");
		const auto e = engines().get(engine);
		ImageStore& images = store_of(*e, &ImageStore::reads_images, "images", "vision");
		images.check_size(width, height);
		Image image(width, height);
		std::copy_n(rgb, image.rgb.size(), image.rgb.begin());
		*out_id = images.add(image);
	});
}

kvrun_status kvrun_audio_add(kvrun_engine* engine, const float* samples, size_t n_samples, uint64_t* out_id) {
	return guard([&] {
		check_pointer(samples, "samples");
		check_pointer(out_id, "out_id");
		const auto e = engines().get(engine);
		ImageStore& sounds = store_of(*e, &ImageStore::reads_audio, "sounds", "audio");
		const std::span<const float> sound(samples, n_samples);
		if (!std::ranges::all_of(sound, [](float v) { return std::isfinite(v); }))
			refuse(KVRUN_EINVALID, "samples holds a number that is not finite");
		*out_id = sounds.add(sound);
	});
}

kvrun_status kvrun_image_tokens(kvrun_engine* engine, uint64_t id, uint32_t* out, size_t capacity, size_t* out_count) {
	return guard([&] {
		const auto e = engines().get(engine);
		const std::vector<uint32_t> tokens = images_of(*e).tokens(id);
		fill_buffer(tokens.data(), tokens.size(), out, capacity, out_count, "tokens");
	});
}
