// Vision encoders on every device, beside HF transformers (golden/vision, tools/dev/make_vision_models.py).
#include "engine/core/npy.h"
#include "engine/run/session.h"
#include "engine/run/session_file.h"
#include "models/fingerprint.h"
#include "tests/support/assets.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/each_device.h"
#include "tests/support/errors.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/rig.h"
#include "tests/support/temp_folder.h"
#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

using namespace kvrun;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path kGolden = fs::path(test_root()) / "tests" / "golden";
const std::string kModel = (kGolden / "tiny" / "llama.gguf").string();
const std::vector<uint32_t> kBefore = {1, 17, 200, 45}, kAfter = {9, 150, 33, 71, 12, 250};

std::string encoder_file(const std::string& name) { return (kGolden / "vision" / (name + ".gguf")).string(); }
NpyArray golden(const std::string& name) { return npy_read(kGolden / "vision" / (name + ".npy")); }

Image pixels_of(const std::string& name) {
	const NpyArray a = golden(name + ".pixels");
	Image image(uint32_t(a.shape[1]), uint32_t(a.shape[0]));
	std::ranges::copy(a.as<uint8_t>(), image.rgb.begin());
	return image;
}

// A text model with the architecture and the axes of positions that an encoder's rows need.
struct WithLines {
	std::string encoder, text, arch;
	std::vector<int32_t> axes;
	std::vector<int32_t> peer_axes = {}; // of make_vision_peer.py, if they are others
	std::string logits = encoder;        // of golden/vision
};
const std::vector<WithLines> kWithLines = {
    {"qwen2vl_merger", "qwen2", "qwen2vl", {2, 1, 1, 0}},
    {"qwen2.5vl_merger", "qwen2", "qwen2vl", {2, 1, 1, 0}},
    {"qwen3vl_merger", "qwen3", "qwen3vl", {6, 5, 5, 0}},
    {"qwen35", "qwen35", "qwen35", {2, 1, 1, 0}},
    {"qwen35", "qwen4exp_sparse", "qwen4exp", {2, 1, 1, 0}, {}, "qwen4exp"},
    {"glm4v", "glm4", "glm4", {2, 1, 1, 0}},
    {"glm_ocr", "glm4", "glm4", {2, 1, 1, 0}},
    {"paddleocr", "ernie4_5", "paddleocr", {2, 1, 1, 0}},
    {"hunyuanvl", "hunyuan_vl", "hunyuan_vl", {2, 1, 2, 3}, {5, 1, 2, 0}},
};

// GLM's converter orders channels of q and k in pairs (i, i + 4) where rows of images have lines and columns.
void pair_halves(GgufBuilder& b) {
	constexpr uint32_t kHeadDim = 16, kRotated = 8;
	for (auto& t : b.tensors) {
		if (t.name.find("attn_q.") == t.name.npos && t.name.find("attn_k.") == t.name.npos) continue;
		const size_t rows = t.dims.back(), bytes = t.data.size() / rows;
		const GgufBuilder::Bytes from = t.data;
		for (size_t r = 0; r < rows; ++r) {
			const size_t c = r % kHeadDim, old = c >= kRotated ? c : c % (kRotated / 2) * 2 + c / (kRotated / 2);
			std::copy_n(from.begin() + long((r - c + old) * bytes), bytes, t.data.begin() + long(r * bytes));
		}
	}
}

std::string model_of(const WithLines& w, const TempFolder& folder, bool for_peer = false) {
	const std::string arch = w.arch, path = (folder.path / (arch + ".gguf")).string();
	const Gguf text = Gguf::open((kGolden / "tiny" / (w.text + ".gguf")).string());
	GgufBuilder b = GgufBuilder::copy_as(text, arch);
	b.numbers(arch + ".rope.dimension_sections", GgufType::I32,
	          for_peer && !w.peer_axes.empty() ? w.peer_axes : w.axes);
	if (arch == "glm4") pair_halves(b);
	if (arch == "qwen4exp") b.u32("qwen4exp.ple.image_token_id", 7); // n-grams have it in place of rows
	std::vector<std::string> tokens;
	for (const std::string_view t : text.texts("tokenizer.ggml.tokens")) tokens.emplace_back(t);
	std::vector<int32_t> types;
	for (const int64_t t : text.ints("tokenizer.ggml.token_type")) types.push_back(int32_t(t));
	const Gguf encoder_gguf = Gguf::open(encoder_file(w.encoder));
	const Projector& p = *std::ranges::find(projectors(), encoder_gguf.text("clip.projector_type"),
	                                        [](const Projector& x) { return std::string_view(x.name); });
	tokens[285] = p.begin, tokens[286] = p.end;
	types[285] = types[286] = 3; // control tokens
	b.texts("tokenizer.ggml.tokens", tokens).numbers("tokenizer.ggml.token_type", GgufType::I32, types);
	const std::vector<std::byte> file = b.bytes();
	std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(file.data()), long(file.size()));
	return path;
}

std::string model_of(const std::string& encoder, const TempFolder& folder, bool for_peer = false) {
	if (encoder.starts_with("gemma"))
		return (kGolden / "tiny" / ((encoder.starts_with("gemma4_") ? encoder : encoder.substr(0, 6)) + ".gguf"))
		    .string();
	if (encoder == "resampler") return (kGolden / "vision" / "text256.gguf").string();
	const auto w = std::ranges::find(kWithLines, encoder, &WithLines::encoder);
	return w == kWithLines.end() ? kModel : model_of(*w, folder, for_peer);
}

std::unique_ptr<Engine> open(const std::string& device, const std::string& encoder, uint32_t block = 0,
                             const std::string& model = kModel) {
	EngineOptions o;
	o.model = model;
	o.backend = select_test_device(device);
	o.ubatch = 16;
	o.prefill_block = block;
	if (!encoder.empty()) o.mmproj = encoder_file(encoder);
	return Engine::open(o);
}

std::vector<uint32_t> prompt_with(const std::vector<uint32_t>& image) {
	std::vector<uint32_t> all = kBefore;
	all.insert(all.end(), image.begin(), image.end());
	all.insert(all.end(), kAfter.begin(), kAfter.end());
	return all;
}

} // namespace

TEST_CASE("images: the rows of every encoder are those of transformers") {
	const TempFolder folder;
	on_every_device([&](const std::string& device) {
		std::vector<std::string> names = {"gemma4_layer_inputs", "glm_ocr"}; // limits of projections; norms of heads
		for (const Projector& p : projectors())
			if (!p.last_version) names.push_back(p.name);
		for (size_t i = 0; i < names.size(); ++i) {
			if (!row_wanted(i)) continue;
			const std::string& name = names[i];
			CAPTURE(name);
			const auto e = open(device, name, 0, model_of(name, folder));
			const Gguf file = Gguf::open(encoder_file(name));
			ImageEncoder encoder(e->backend(), file, read_vision(file, e->config()));
			const NpyArray want = golden(name + ".rows");
			const Image pixels = pixels_of(name);
			{
				const auto tile = encoder.begin(pixels);
				const double planned = double(TileEncoder::bytes(encoder.config(), tile->grid().n()));
				CHECK(double(tile->bytes()) <= planned * 1.02 + (64 << 10)); // buffers are aligned
				CHECK(double(tile->bytes()) >= planned * 0.9);
			}
			const TileRows tile = encoder.encode(pixels);
			const auto in_parts = encoder.begin(pixels, 5);
			while (!in_parts->done()) in_parts->step();
			CHECK(relative_difference(encoder.finish(*in_parts).rows, tile.rows) < 1e-5);
			std::vector<float> got = tile.rows;
			for (const std::vector<float>& rows : tile.deep) got.insert(got.end(), rows.begin(), rows.end());
			CHECK(relative_difference(got, want.as<float>()) <
			      logits_tolerance(e->backend(), "llama", /*decode=*/false));
		}
	});
}

TEST_CASE("images: a prompt with an image has the logits of transformers, however it is read") {
	const NpyArray want = golden("mlp.logits");
	on_every_device([&](const std::string& device) {
		for (const uint32_t block : {0u, 7u}) { // the second one cuts the image
			const auto e = open(device, "mlp", block);
			ImageStore& images = *e->images();
			const uint64_t id = images.add(pixels_of("mlp"));
			CHECK(images.add(pixels_of("mlp")) == id);
			const std::vector<uint32_t> tokens = prompt_with(images.tokens(id));
			REQUIRE(tokens.size() == want.shape[0]);
			CHECK(std::ranges::count_if(tokens, is_image_row) == 16);
			Session s(*e, {.ctx = 64});
			CHECK(relative_difference(logits_of(s, tokens), want.as<float>()) <
			      logits_tolerance(e->backend(), "llama", /*decode=*/false));
			CHECK(std::ranges::equal(s.history(), tokens));
			s.decode(7); // goes on
		}
		const auto e = open(device, "mlp");
		const std::vector<uint32_t> tokens = prompt_with(e->images()->tokens(e->images()->add(pixels_of("mlp"))));
		for (const size_t cut : {size_t(2), size_t(5), size_t(13), tokens.size() - 3}) {
			Session s(*e, {.ctx = 64});
			std::vector<float> got = logits_of(s, std::span(tokens).first(cut));
			const std::vector<float> rest = logits_of(s, std::span(tokens).subspan(cut));
			got.insert(got.end(), rest.begin(), rest.end());
			CHECK(relative_difference(got, want.as<float>()) <
			      logits_tolerance(e->backend(), "llama", /*decode=*/false));
		}
	});
}

TEST_CASE("images: several prompts read an image at once, also when one gives up") {
	on_every_device([&](const std::string& device) {
		const auto e = open(device, "internvl", 0, (kGolden / "vision" / "text.gguf").string());
		Image image(40, 20); // two squares and the whole
		for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = uint8_t(i * 7 + i / 97);
		const std::vector<uint32_t> tokens = prompt_with(e->images()->tokens(e->images()->add(image)));
		Session a(*e, {.ctx = 256}), b(*e, {.ctx = 256}), c(*e, {.ctx = 256});
		std::vector<float> got[3];
		const auto hooks = [&](std::vector<float>& to) {
			PrefillHooks h;
			h.all_logits = [&](uint32_t, uint32_t, std::span<const float> l) {
				to.insert(to.end(), l.begin(), l.end());
			};
			return h;
		};
		{
			Prefill one(a, tokens, hooks(got[0])), two(b, tokens, hooks(got[1])), three(c, tokens, hooks(got[2]));
			one.step(1e-9);
			for (bool more = true; more;) { // each finishes tiles that the others have begun
				more = !two.step(1e-9);
				if (more) more = !two.step(1e-9);
				more |= !one.step(1e-9);
				if (three.progress() < 0.1) three.step(1e-9);
			}
		}
		CHECK(c.n_tokens() == 0); // it gave up
		CHECK(logits_of(c, tokens) == got[0]);
		const auto other = open(device, "internvl", 0, (kGolden / "vision" / "text.gguf").string());
		other->images()->add(image);
		Session d(*other, {.ctx = 256});
		const std::vector<float> alone = logits_of(d, tokens);
		CHECK(got[0] == alone);
		CHECK(got[1] == alone);
	});
}

// In Gemma 4's layers without a window they do not, nor in its models with layer inputs, which take those of token 0.
TEST_CASE("images: rows of an image see each other in Gemma's models, however the prompt is read") {
	const TempFolder folder;
	const auto run = [&](const std::string& device, const std::string& name, uint32_t n) {
		CAPTURE(name);
		const NpyArray want = golden(name + ".logits");
		for (const auto& sizes : {std::pair(16u, 0u), {n, 0u}, {16u, n + 3}, {n + 1, n + 2}}) {
			const uint32_t ubatch = sizes.first, block = sizes.second;
			CAPTURE(ubatch);
			CAPTURE(block);
			EngineOptions o;
			o.model = model_of(name, folder);
			o.backend = select_test_device(device);
			o.ubatch = ubatch, o.prefill_block = block;
			o.mmproj = encoder_file(name);
			if (name != "gemma3") o.image_rows = {0, n};
			const auto e = Engine::open(o);
			const ImageStore::Rows rows = e->images()->rows(e->images()->add(pixels_of(name)));
			REQUIRE(rows.n == n);
			std::vector<uint32_t> tokens = kBefore;
			const auto add = [&](auto from, auto to) { tokens.insert(tokens.end(), from, to); };
			const auto image = [&] {
				for (uint32_t i = 0; i < rows.n; ++i) tokens.push_back(rows.first + i);
			};
			image(), add(kAfter.begin(), kAfter.begin() + 2), image(), add(kAfter.begin(), kAfter.end());
			REQUIRE(tokens.size() == want.shape[0]);
			for (const double seconds : {0.1, 1e-9}) {
				Session s(*e, {.ctx = 64});
				std::vector<float> got;
				PrefillHooks hooks;
				hooks.all_logits = [&](uint32_t, uint32_t, std::span<const float> l) {
					got.insert(got.end(), l.begin(), l.end());
				};
				Prefill p(s, tokens, hooks);
				while (!p.step(seconds)) {}
				CHECK(relative_difference(got, want.as<float>()) < logits_tolerance(e->backend(), name, false));
			}
		}
	};
	on_every_device([&](const std::string& device) {
		if (row_wanted(0)) run(device, "gemma3", 4);
		if (row_wanted(1)) run(device, "gemma4v", 6);
		if (row_wanted(2)) run(device, "gemma4_layer_inputs", 6);
		if (row_wanted(3)) run(device, "gemma4uv", 6);
		EngineOptions o;
		o.model = (kGolden / "tiny" / "gemma3.gguf").string();
		o.backend = select_test_device(device);
		o.ubatch = 3;
		o.mmproj = encoder_file("gemma3");
		const auto e = Engine::open(o);
		const uint64_t id = e->images()->add(pixels_of("gemma3"));
		Session s(*e, {.ctx = 128});
		CHECK(error_of([&] { s.prefill(e->images()->tokens(id)); }).find("--ubatch-size is 3; raise it") !=
		      std::string::npos);
	});
}

// Hunyuan's also have rows that end lines and rows around all, and advance by the number of rows.
TEST_CASE("images: rows have lines and columns in Qwen's models, however the prompt is read, and behind them") {
	const TempFolder folder;
	on_every_device([&](const std::string& device) {
		for (size_t i = 0; i < kWithLines.size(); ++i) {
			const WithLines& w = kWithLines[i];
			// the merger's rows are in the model as Qwen2-VL's
			if (w.encoder == "qwen2.5vl_merger" || !row_wanted(i)) continue;
			CAPTURE(w.logits);
			const bool framed = w.encoder == "hunyuanvl";
			const NpyArray want = golden(w.logits + ".logits");
			const std::string model = model_of(w, folder);
			const auto compare = [&](Engine& e, std::span<const float> got, size_t first) {
				const size_t vocab = want.shape[1];
				CHECK(relative_difference(got, want.as<float>().subspan(first * vocab, got.size())) <
				      logits_tolerance(e.backend(), w.text, /*decode=*/false));
			};
			std::vector<uint32_t> tokens;
			for (const uint32_t block : {0u, 7u}) { // the second one cuts images and lines
				const auto e = open(device, w.encoder, block, model);
				std::vector<uint32_t> image = e->images()->tokens(e->images()->add(pixels_of(w.encoder)));
				std::erase_if(image, [](uint32_t t) { return !is_image_row(t); });
				CHECK(image.size() == (framed ? 14 : 10));
				CHECK(std::ranges::count_if(image, marks_line) == (framed ? 4 : 2));
				tokens = kBefore;
				const auto add = [&](auto from, auto to) { tokens.insert(tokens.end(), from, to); };
				add(image.begin(), image.end()), add(kAfter.begin(), kAfter.begin() + 2);
				add(image.begin(), image.end()), add(kAfter.begin(), kAfter.end());
				REQUIRE(tokens.size() == want.shape[0]);
				Session s(*e, {.ctx = 64});
				compare(*e, logits_of(s, tokens), 0);
			}
			const auto e = open(device, w.encoder, 0, model);
			e->images()->add(pixels_of(w.encoder));
			for (const size_t cut : {size_t(7), size_t(15), size_t(16), tokens.size() - 4}) {
				CAPTURE(cut);
				Session s(*e, {.ctx = 64});
				compare(*e, logits_of(s, std::span(tokens).first(cut)), 0);
				compare(*e, logits_of(s, std::span(tokens).subspan(cut)), cut);
				const uint32_t n = s.keep_common(std::span(tokens).first(std::min(cut, size_t(16))));
				compare(*e, logits_of(s, std::span(tokens).subspan(n)), n);
			}
			const size_t text = tokens.size() - kAfter.size(); // behind the second image, in decode steps
			Session s(*e, {.ctx = 64});
			logits_of(s, std::span(tokens).first(text));
			// an image of 2 lines and 5 columns advances by 5
			CHECK(s.next_position() == (framed ? text : kBefore.size() + 5 + 2 + 5));
			const std::string path = (folder.path / "s").string();
			save_session(s, path, {});
			const auto fork = s.fork(), restored = restore_session(*e, path), other = s.fork();
			other->reset();
			other->prefill(kAfter);
			other->decode(7);
			other->take_fork(s);
			for (Session* each : {&s, fork.get(), restored.get(), other.get()})
				for (size_t i = text; i < tokens.size(); ++i) compare(*e, each->decode(tokens[i]), i);
		}
	});
}

TEST_CASE("images: other pixels are another image; sessions keep, save and restore what they hold") {
	on_every_device([&](const std::string& device) {
		const auto e = open(device, "mlp");
		ImageStore& images = *e->images();
		Image other = pixels_of("mlp");
		other.rgb[100] ^= 128;
		const std::vector<uint32_t> one = prompt_with(images.tokens(images.add(pixels_of("mlp")))),
		                            two = prompt_with(images.tokens(images.add(other)));
		Session s(*e, {.ctx = 64});
		const std::vector<float> first = logits_of(s, one);
		CHECK(s.keep_common(two) == kBefore.size());
		const std::vector<float> changed = logits_of(s, std::span(two).subspan(kBefore.size()));
		CHECK(relative_difference(std::span(changed).last(10), std::span(first).last(10)) > 1e-3);
		s.reset();
		CHECK(logits_of(s, one) == first);

		const TempFolder folder;
		const std::string path = (folder.path / "s").string();
		save_session(s, path, {});
		const auto again = open(device, "mlp"); // an engine that has never seen the image
		const std::unique_ptr<Session> restored = restore_session(*again, path);
		CHECK(std::ranges::equal(restored->history(), one));
		std::vector<uint32_t> longer = one;
		longer.push_back(33);
		CHECK(restored->keep_common(longer) == one.size());
		logits_of(*restored, std::span(longer).last(1));
		restored->reset();
		Code code{};
		CHECK(error_of([&] { restored->prefill(one); }, &code) ==
		      "a token is of an image or a sound that is no longer held; give it again");
		CHECK(code == Code::NotFound);
		CHECK(restored->n_tokens() == 0);
	});
}

// tools/dev/make_vision_peer.py. Answers depend on each pixel, so they also compare how images are cut and resized.
TEST_CASE("images: prompts and answers are those of llama.cpp for images of all shapes") {
	std::ifstream in(kGolden / "vision" / "peer.json");
	const Json peer = Json::parse(in);
	const std::string device = test_devices().front().name;
	const TempFolder folder;
	size_t number = 0;
	for (const auto& entry : peer.items()) {
		const std::string& name = entry.key();
		const Json& rows = entry.value();
		if (!rows.is_array() || !row_wanted(number++)) continue; // no array: llama.cpp's version
		CAPTURE(name);
		const bool lines = std::ranges::count(kWithLines, name, &WithLines::encoder) > 0;
		const auto e = open(device, name, 0,
		                    lines || name == "resampler" ? model_of(name, folder, /*for_peer=*/true)
		                                                 : (kGolden / "vision" / "text.gguf").string());
		const Tokenizer& t = e->tokenizer();
		for (const Json& row : rows) {
			const uint32_t width = row["width"], height = row["height"];
			CAPTURE(width);
			CAPTURE(height);
			Image image(width, height);
			for (uint32_t y = 0; y < height; ++y)
				for (uint32_t x = 0; x < width; ++x)
					for (uint32_t c = 0; c < 3; ++c)
						image.rgb[(y * width + x) * 3 + c] = uint8_t(x * 7 + y * 13 + c * 50 + x * y % 31 * 3);
			std::vector<uint32_t> prompt = e->images()->tokens(e->images()->add(image));
			if (name == "resampler") prompt.erase(prompt.begin(), prompt.begin() + 4); // llama.cpp writes no numbers
			prompt.insert(prompt.begin(), t.bos().value());
			for (const uint32_t id : t.encode("abc", {.bos = false})) prompt.push_back(id);
			CHECK(prompt.size() == row["prompt"].get<size_t>());
			Session s(*e, {.ctx = 256});
			const std::span<const float> logits = s.prefill(prompt);
			double sum = 0;
			for (const float x : logits) sum += std::exp(double(x));
			for (size_t i = 0; i < row["tokens"].size(); ++i)
				CHECK(double(logits[row["tokens"][i]]) - std::log(sum) ==
				      doctest::Approx(row["logprobs"][i].get<double>()).epsilon(0.01));
		}
	}
}

TEST_CASE("images: MiniCPM-V's have their number in the prompt in front") {
	const auto e = open(test_devices().front().name, "resampler", 0, model_of("resampler", TempFolder()));
	const uint64_t id = e->images()->add(pixels_of("resampler"));
	for (const uint32_t number : {0u, 12u}) {
		std::vector<uint32_t> tokens = e->images()->tokens(id, number);
		std::erase_if(tokens, is_image_row);
		CHECK(tokens == e->tokenizer().encode(fmt::format("<image_id>{}</image_id><image></image>", number),
		                                      {.bos = false, .special = true}));
	}
}

TEST_CASE("images: refused without an encoder, and as a decoded token") {
	on_every_device([&](const std::string& device) {
		const auto e = open(device, ""), with = open(device, "mlp");
		Session s(*e, {.ctx = 64}), t(*with, {.ctx = 64});
		const uint32_t row = with->images()->tokens(with->images()->add(pixels_of("mlp")))[0];
		Code code{};
		CHECK(error_of([&] { s.prefill(std::vector{row}); }, &code).find("outside the vocabulary") !=
		      std::string::npos);
		CHECK(code == Code::Invalid);
		t.prefill(std::vector{1u});
		CHECK(error_of([&] { t.decode(row); }, &code).find("outside the vocabulary") != std::string::npos);
	});
}
