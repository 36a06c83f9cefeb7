// libFuzzer target: any bytes as the file of an encoder for four tiny models, and a small image or sound through it.
#include "backends/registry.h"
#include "engine/run/audio_encoder.h"
#include "engine/run/image_encoder.h"
#include "tests/fuzz/expect.h"

using namespace kvrun;

namespace {

constexpr uint32_t kMostPatches = 256; // of a tile that is encoded: more take too long

Config model(const char* name) {
	return read_config(Gguf::open(KVRUN_SOURCE_DIR "/tests/golden/tiny/" + std::string(name)));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
	static const std::unique_ptr<Backend> cpu = [] {
		BackendOptions o;
		o.device = "cpu";
		return open_backend(o);
	}();
	static const Config models[] = {model("llama.gguf"), model("gemma4.gguf"), model("gemma4_layer_inputs.gguf"),
	                                model("hunyuan_vl.gguf")};
	for (const Config& m : models)
		expect_errors_only([&] {
			const Gguf g = Gguf::parse("fuzz", std::as_bytes(std::span(data, size)));
			if (has_audio(g)) {
				AudioEncoder encoder(*cpu, g, read_audio(g, m));
				const AudioConfig& a = encoder.config();
				const AudioPiece piece = cut_audio(a, std::vector<float>(4000, 0.5f))[0];
				if (encoder.encode(piece).rows.size() != size_t(a.rows(piece.frames)) * a.out_dim) std::abort();
				return;
			}
			const VisionConfig v = read_vision(g, m);
			(void)TileEncoder::bytes(v, v.most_patches());
			const TiledImage tiles = tile_image(v, Image(v.patch, 2 * v.patch, {200, 100, 50}));
			const Image& tile = tiles.tiles[0].pixels;
			if (grid_of(v, tile).n() > kMostPatches) return;
			ImageEncoder encoder(*cpu, g, v);
			if (encoder.encode(tile).rows.size() != size_t(v.rows(tile.width, tile.height)) * v.out_dim) std::abort();
		});
	return 0;
}
