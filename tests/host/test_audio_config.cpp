// Files of audio encoders: what is read, and hostile ones, refused in one line.
#include "backends/registry.h"
#include "engine/run/image_store.h"
#include "tests/support/assets.h"
#include "tests/support/errors.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/sound.h"
#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>

using namespace kvrun;

namespace {

const std::filesystem::path kGolden = std::filesystem::path(test_root()) / "tests" / "golden";

const Config& text_model() {
	static const Config c = read_config(Gguf::open((kGolden / "tiny" / "llama.gguf").string()));
	return c;
}
GgufBuilder encoder(const std::string& name) {
	return GgufBuilder::copy_as(Gguf::open((kGolden / "audio" / (name + ".gguf")).string()), "clip");
}
std::string refusal(const GgufBuilder& b) {
	const std::vector<std::byte> bytes = b.bytes();
	return refusal_by([&] { read_encoders(Gguf::parse("test.gguf", bytes), text_model()); });
}
std::string with_u32(const std::string& name, const std::string& key, uint32_t value) {
	GgufBuilder b = encoder(name);
	b.u32("clip.audio." + key, value);
	return refusal(b);
}
void check_has(const std::string& text, const std::string& part) { CHECK_MESSAGE(has(text, part), text); }

} // namespace

TEST_CASE("audio files: sizes that cannot be are refused by their key") {
	for (const char* key : {"embedding_length", "block_count", "attention.head_count", "feed_forward_length",
	                        "num_mel_bins", "projection_dim"}) {
		CAPTURE(key);
		check_has(with_u32("voxtral", key, 0), key);
		CHECK(!with_u32("voxtral", key, UINT32_MAX).empty());
	}
	check_has(with_u32("voxtral", "projector.stack_factor", 0), "stack_factor");
	check_has(with_u32("voxtral", "attention.head_count", 3), "heads of multiples of 8");
	for (const char* key :
	     {"chunk_size", "max_pos_emb", "projector.window_size", "projector.downsample_rate", "projector.head_count"}) {
		CAPTURE(key);
		check_has(with_u32("granite_speech", key, 0), key);
	}
	check_has(with_u32("granite_speech", "max_pos_emb", 22), "max_pos_emb is 22, but blocks have 24 rows");
	check_has(with_u32("granite_speech", "projector.downsample_rate", 16), "downsample_rate is 16, expected 1 to 15");
	check_has(with_u32("granite_speech", "projector.head_count", 5), "head_count is 5, no divisor of 32 channels");
	check_has(with_u32("granite_speech", "num_mel_bins", 62), "num_mel_bins is 62, expected a multiple of 4");
	check_has(with_u32("granite_speech", "feature_layer", 1), "feature_layer: rows of several layers");
	for (const float eps : {-1.f, NAN, INFINITY, 2.f}) {
		GgufBuilder b = encoder("gemma4a");
		b.f32("clip.audio.attention.layer_norm_epsilon", eps);
		CHECK(!refusal(b).empty());
	}
	GgufBuilder b = encoder("qwen3a");
	b.text("clip.audio.projector_type", "lfm2a\n");
	check_has(refusal(b), "audio projector 'lfm2a\\n' is not supported; kvrun runs voxtral, ");
	Config wide = text_model();
	wide.dim = 64;
	const std::vector<std::byte> bytes = encoder("qwen2a").bytes();
	check_has(refusal_by([&] { read_encoders(Gguf::parse("test.gguf", bytes), wide); }),
	          "take the mmproj file of this model");
}

TEST_CASE("audio files: tensors that are missing or have another shape are refused by name") {
	BackendOptions o;
	o.device = "cpu";
	const std::unique_ptr<Backend> cpu = open_backend(o);
	for (const AudioProjector& p : audio_projectors()) {
		CAPTURE(p.name);
		const GgufBuilder whole = encoder(p.name);
		for (size_t i = 0; i < whole.tensors.size(); ++i) {
			CAPTURE(whole.tensors[i].name);
			const auto load = [&](const GgufBuilder& b) {
				const std::vector<std::byte> bytes = b.bytes();
				const Gguf g = Gguf::parse("test.gguf", bytes);
				return refusal_by([&] {
					AudioConfig a = read_audio(g, text_model());
					load_audio(g, a, *cpu);
				});
			};
			GgufBuilder without = whole;
			without.tensors.erase(without.tensors.begin() + ptrdiff_t(i));
			load(without); // biases are optional
			for (size_t d = 0; d < whole.tensors[i].dims.size(); ++d) {
				GgufBuilder shorter = whole; // half of a dimension
				auto& t = shorter.tensors[i];
				if (t.dims[d] % 2 != 0) continue;
				t.dims[d] /= 2;
				t.data.resize(t.data.size() / 2);
				const bool positions =
				    t.name == "a.position_embd.weight" && d == 1 && p.part; // 1500, of which few are used
				const bool kernel = t.name.ends_with("conv_dw.weight");
				CHECK((!load(shorter).empty() || positions || kernel));
			}
		}
	}
}

TEST_CASE("audio files: one with both encoders, and what is neither") {
	GgufBuilder both = encoder("qwen2a");
	const GgufBuilder vision = GgufBuilder::copy_as(Gguf::open((kGolden / "vision" / "mlp.gguf").string()), "clip");
	for (const auto& t : vision.tensors) both.tensors.push_back(t);
	for (const GgufBuilder::Key& k : vision.keys) both.set(k.name, GgufType(k.type), k.value);
	const std::vector<std::byte> bytes = both.bytes();
	const EncoderConfigs e = read_encoders(Gguf::parse("test.gguf", bytes), text_model());
	CHECK(e.audio.has_value());
	REQUIRE(e.vision.has_value());
	CHECK(std::string_view(e.vision->projector->name) == "mlp");
	CHECK(encoding_bytes(e) >= AudioEncoder::bytes(*e.audio));
	check_has(refusal(GgufBuilder::copy_as(Gguf::open((kGolden / "tiny" / "llama.gguf").string()), "llama")),
	          "it is no vision encoder");
}

TEST_CASE("audio: sounds of every length have as many rows as their pieces say") {
	for (const AudioProjector& p : audio_projectors()) {
		CAPTURE(p.name);
		const std::vector<std::byte> bytes = encoder(p.name).bytes();
		const AudioConfig c = read_audio(Gguf::parse("test.gguf", bytes), text_model());
		for (const uint32_t samples : {1u, 159u, 160u, 161u, 320u, 321u, 640u, 641u, 1000u, 15999u, 16000u, 16001u,
		                               128000u, 128001u, 480000u, 480001u, 480161u, 512000u, 512161u}) {
			CAPTURE(samples);
			uint32_t rows = 0;
			const std::string error = error_of([&] {
				for (const AudioPiece& piece : cut_audio(c, test_sound(samples))) {
					CHECK(piece.frames <= piece.spectrogram.frames);
					CHECK(piece.spectrogram.values.size() == size_t(piece.spectrogram.frames) * c.bins);
					CHECK(c.rows(piece.frames) > 0);
					rows += c.rows(piece.frames);
				}
			});
			CHECK(error.empty() == (rows > 0));
			if (samples >= 1000) CHECK(rows > 0);
		}
	}
}
