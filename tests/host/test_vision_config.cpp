// Files of vision encoders: what is read, and hostile ones, refused in one line.
#include "backends/registry.h"
#include "models/vision_weights.h"
#include "tests/support/assets.h"
#include "tests/support/errors.h"
#include "tests/support/gguf_builder.h"
#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>

using namespace kvrun;

namespace {

std::string file_of(const std::string& name) {
	return (std::filesystem::path(test_root()) / "tests" / "golden" / "vision" / (name + ".gguf")).string();
}
// Of an encoder.
const Config& text_model(const std::string& encoder = "mlp") {
	static const Config llama = read_config(Gguf::open(file_of("text")));
	static const auto with_axes = [](const char* name) {
		Config c = read_config(Gguf::open((std::filesystem::path(test_root()) / "tests/golden/tiny" / name).string()));
		c.ropes[0].axes = {2, 1, 1};
		return c;
	};
	static const Config qwen2 = with_axes("qwen2.gguf"), qwen3 = with_axes("qwen3.gguf"), glm4 = with_axes("glm4.gguf"),
	                    ernie = with_axes("ernie4_5.gguf");
	static const Config hunyuan =
	    read_config(Gguf::open((std::filesystem::path(test_root()) / "tests/golden/tiny/hunyuan_vl.gguf").string()));
	static const Config wide = read_config(Gguf::open(file_of("text256")));
	if (encoder == "hunyuanvl") return hunyuan;
	if (encoder == "resampler") return wide;
	if (encoder == "glm4v") return glm4;
	if (encoder == "paddleocr") return ernie;
	return encoder.starts_with("qwen2") ? qwen2 : encoder.starts_with("qwen3") ? qwen3 : llama;
}
GgufBuilder encoder(const std::string& name) { return GgufBuilder::copy_as(Gguf::open(file_of(name)), "clip"); }

std::string refusal(const GgufBuilder& b, const Config& model = text_model()) {
	const std::vector<std::byte> bytes = b.bytes();
	return refusal_by([&] { read_vision(Gguf::parse("test.gguf", bytes), model); });
}
// With one key changed.
std::string with_u32(const std::string& encoder_name, const std::string& key, uint32_t value) {
	GgufBuilder b = encoder(encoder_name);
	b.u32("clip.vision." + key, value);
	return refusal(b, text_model(encoder_name));
}

// Of an image in pixels, and of its tile in rows of the model.
struct SizeOfTile {
	uint32_t width, height, columns, rows;
};
// edge: of a row, in pixels.
void check_tiles(const VisionConfig& v, std::span<const SizeOfTile> sizes, uint32_t edge) {
	for (const SizeOfTile& s : sizes) {
		CAPTURE(s.width);
		CAPTURE(s.height);
		const Image tile = tile_image(v, Image(s.width, s.height)).tiles[0].pixels;
		CHECK(tile.width == s.columns * edge);
		CHECK(tile.height == s.rows * edge);
	}
}

} // namespace

TEST_CASE("vision files: what the golden encoders are") {
	for (const Projector& p : projectors()) {
		if (p.last_version) continue; // as the row without a version, but for texts
		CAPTURE(p.name);
		const Config& model = text_model(p.name);
		const VisionConfig v = read_vision(Gguf::open(file_of(p.name)), model);
		const std::string name = p.name;
		const bool wide = name == "qwen2.5vl_merger", exaone = name == "exaone4_5", muse = name == "muse-glimmer",
		           deep = name == "qwen3vl_merger", windows = wide || exaone || muse, framed = name == "hunyuanvl",
		           twice = name == "minicpmv4_6", small = twice || name == "resampler";
		CHECK(v.projector == &p);
		CHECK(v.patch == (wide ? 14 : p.bare ? 6 : 4));
		// 112 and 16 pixels; the table's edge; what becomes one patch behind layer 0
		CHECK(v.window == (wide ? 8 : exaone ? 4 : muse ? 3 : twice ? 2 : 0));
		CHECK(v.windowed(0) == windows);
		CHECK(v.windowed(1) == (muse || twice));
		CHECK(v.windowed(2) == windows);
		CHECK(!v.windowed(muse ? 4 : 3)); // Muse's last layer has none
		CHECK(v.deep == (deep ? std::vector<uint32_t>{1} : std::vector<uint32_t>()));
		CHECK(v.out_dim == model.dim);
		CHECK(v.transformer.layers.size() == (p.bare ? 0 : muse ? 5 : wide || exaone || deep || twice ? 3 : 2));
		CHECK(v.transformer.n_kv_heads == (p.bare || exaone ? 1 : wide || small ? 2 : 3));
		CHECK(v.queries == (name == "resampler" ? 20 : 0));
		CHECK(v.transformer.head_dim == 8);
		const bool one = name == "mlp" || name == "internvl" || name == "llama4";
		CHECK(v.class_tokens == (one ? 1 : name == "nemotron_v2_vl" ? 3 : 0));
		CHECK(v.layer_scales == (name == "internvl"));
		CHECK(v.line_ends == (name == "pixtral" || framed));
		CHECK(v.last_line_ends == framed);
		CHECK(v.framed == framed);
		CHECK(refusal(encoder(p.name), model).empty());
	}
}

TEST_CASE("vision files: encoders whose rows have lines and columns, and models that have none") {
	const std::string name = "qwen3vl_merger";
	Config model = text_model(name);
	model.ropes[0].axes = {};
	has(refusal(encoder(name), model), "has no key qwen3.rope.dimension_sections");
	for (const char* own : {"hunyuanvl", "paddleocr"}) {
		model = text_model(own);
		model.ropes[0].axes.numbered ^= true;
		has(refusal(encoder(own), model), "rows of images have other positions; take the mmproj file of this model");
	}
	model = text_model(name);
	model.n_layers = 1;
	has(refusal(encoder(name), model), "rows are for 2 layers of the model, which has 1");
	for (const uint32_t merge : {0u, 3u, 16u, UINT32_MAX}) CHECK(!with_u32(name, "spatial_merge_size", merge).empty());
	GgufBuilder b = encoder("qwen2.5vl_merger");
	b.u32("clip.vision.patch_size", 64).u32("clip.vision.image_size", 512);
	has(refusal(b, text_model("qwen2")), "windows of 112 pixels hold no 2 x 2 patches of 64");
	b = encoder("internvl");
	b.u32("clip.vision.n_wa_pattern", 2);
	has(refusal(b), "windows and a class token");
	// files of Qwen2-VL have another number, or 0
	for (const uint32_t hidden : {0u, 48u, 123u})
		CHECK(with_u32("qwen2vl_merger", "feed_forward_length", hidden) == "");
}

TEST_CASE("vision files: limits of projections without norms of outputs are refused") {
	GgufBuilder b = encoder("gemma4_layer_inputs");
	CHECK(refusal(b) == "");
	for (const char* name : {"v.blk.0.attn_post_norm.weight", "v.blk.0.ffn_post_norm.weight"}) {
		GgufBuilder without = b;
		std::erase_if(without.tensors, [&](const auto& t) { return t.name == name; });
		has(refusal(without), "its projections have limits");
	}
}

TEST_CASE("vision files: limits of the rows of an image whose size decides") {
	const auto rows_of = [](const char* name, ImageRows limits, uint32_t width, uint32_t height) {
		const VisionConfig v = read_vision(Gguf::open(file_of(name)), text_model(name), limits);
		const TiledImage t = tile_image(v, Image(width, height));
		REQUIRE(t.tiles.size() == 1);
		return v.rows(t.tiles[0].pixels.width, t.tiles[0].pixels.height);
	};
	CHECK(rows_of("qwen2vl_merger", {}, 80, 40) == 50);      // rows of 8 x 8 pixels
	CHECK(rows_of("qwen2vl_merger", {0, 20}, 80, 40) == 18); // 6 x 3
	CHECK(rows_of("qwen2vl_merger", {0, 1}, 80, 40) == 1);
	CHECK(rows_of("qwen2vl_merger", {100, 0}, 80, 40) >= 100);
	CHECK(rows_of("qwen2vl_merger", {5000, 0}, 80, 40) >= 5000); // above the projector's upper limit
	CHECK(rows_of("qwen2vl_merger", {7, 7}, 16, 8) == 3);        // 8 would be more than memory is planned for
	CHECK(rows_of("pixtral", {0, 4}, 16, 16) == 5);              // with a row end
	CHECK(rows_of("pixtral", {}, 16, 16) == 11);
	CHECK(rows_of("hunyuanvl", {}, 80, 40) == 5 * 11 + 2);
	CHECK(rows_of("hunyuanvl", {0, 1}, 80, 40) == 4);
	const auto refused = [](const char* name, ImageRows limits) {
		return error_of([&] { read_vision(Gguf::open(file_of(name)), text_model(name), limits); });
	};
	has(refused("mlp", {0, 4}), "an encoder of type mlp makes the same number of tokens");
	has(refused("pixtral", {10, 9}), "at least 10 tokens and at most 9");
	has(refused("qwen2vl_merger", {0, 1 << 20}), "patches");
	CHECK(refused("qwen2vl_merger", {7, 7}) == "");
}

// get_aspect_ratio_preserving_size() of transformers 5.24 with patches of 4 pixels.
TEST_CASE("vision files: Gemma 4's images take the most rows they may") {
	VisionConfig v = read_vision(Gguf::open(file_of("gemma4v")), text_model());
	CHECK(v.table_edge == 12);
	v.table_edge = 0; // this file's table is for smaller images
	const SizeOfTile sizes[] = {{640, 480, 19, 14}, {36, 24, 20, 13},   {1000, 10, 167, 1},  {3, 1200, 1, 280},
	                            {500, 500, 16, 16}, {20000, 7, 280, 1}, {4000, 3000, 19, 14}};
	check_tiles(v, sizes, 12);
	Config windows = text_model(); // rows that see each other are in one window
	windows.layers[0].window.tokens = 50;
	CHECK(read_vision(Gguf::open(file_of("gemma4v")), windows).most_rows == 50);
	windows.layer_input_dim = 8;
	CHECK(read_vision(Gguf::open(file_of("gemma4v")), windows).most_rows == 280);
	v.table_edge = 12;
	CHECK(tile_image(v, Image(1000, 10)).tiles[0].pixels.width == 4 * 12);
}

TEST_CASE("vision files: pages of LightOnOCR have no edge longer than the encoder's square") {
	VisionConfig v = read_vision(Gguf::open(file_of("lightonocr")), text_model());
	v.patch = 14, v.image_size = v.square = 1540; // as published
	const SizeOfTile sizes[] = {
	    {1654, 2339, 39, 55}, {28, 28, 1, 1}, {29, 10, 2, 1}, {5000, 100, 55, 2}, {1540, 1540, 55, 55}};
	check_tiles(v, sizes, 28);
}

// smart_resize() of transformers 5.24.
TEST_CASE("vision files: Muse Glimmer's images take the shape that is nearest to theirs") {
	VisionConfig v = read_vision(Gguf::open(file_of("muse-glimmer")), text_model());
	v.patch = 14; // as published
	const SizeOfTile sizes[] = {{640, 480, 23, 17}, {28, 28, 1, 1},       {1, 1, 1, 1},
	                            {29, 10, 2, 1},     {5000, 100, 179, 4},  {100, 5000, 4, 179},
	                            {40, 1000, 2, 36},  {8000, 6000, 73, 55}, {20000, 7, 715, 1}};
	check_tiles(v, sizes, 28);
}

TEST_CASE("vision files: GLM-5.3's images lie in the first corner of a black tile") {
	VisionConfig v = read_vision(Gguf::open(file_of("glm5v")), text_model(), {16, 1000});
	v.patch = 14; // as published
	struct Row {
		uint32_t width, height, columns, rows, inner_width, inner_height; // of the image in the tile
	};
	for (const Row& r : {Row{640, 480, 23, 18, 640, 480},
	                     {28, 28, 4, 4, 112, 112},
	                     {29, 10, 7, 3, 196, 67},
	                     {5000, 100, 179, 4, 5000, 100},
	                     {40, 1000, 2, 36, 40, 1000},
	                     {4000, 3000, 36, 27, 1008, 756},
	                     {20000, 7, 715, 1, 20000, 7}}) {
		CAPTURE(r.width);
		CAPTURE(r.height);
		const Image tile = tile_image(v, Image(r.width, r.height, {255, 255, 255})).tiles[0].pixels;
		CHECK(tile.width == r.columns * 28);
		CHECK(tile.height == r.rows * 28);
		const auto pixel = [&](uint32_t x, uint32_t y) { return tile.rgb[(size_t(y) * tile.width + x) * 3]; };
		CHECK(pixel(r.inner_width - 1, r.inner_height - 1) == 255);
		if (r.inner_width < tile.width) CHECK(pixel(r.inner_width, 0) == 0);
		if (r.inner_height < tile.height) CHECK(pixel(0, r.inner_height) == 0);
	}
}

// The expected numbers of the next two are those of the processors of transformers 5.24.
TEST_CASE("vision files: LFM2's images become squares of the nearest shape, and the whole") {
	VisionConfig v = read_vision(Gguf::open(file_of("lfm2")), text_model());
	v.patch = 16, v.image_size = 256; // as published
	struct Row {
		uint32_t width, height, columns, rows, whole_columns, whole_rows; // in rows of the model
	};
	for (const Row& r : {Row{200, 100, 0, 0, 12, 6},
	                     {512, 512, 0, 0, 16, 16},
	                     {640, 480, 0, 0, 18, 13},
	                     {700, 700, 0, 0, 16, 16},
	                     {730, 720, 0, 0, 16, 15},
	                     {1040, 1040, 2, 2, 16, 16},
	                     {1920, 1080, 4, 2, 21, 12},
	                     {3000, 400, 8, 1, 43, 5},
	                     {400, 3000, 1, 8, 5, 43},
	                     {4000, 3000, 3, 2, 18, 13},
	                     {528, 1040, 0, 0, 11, 22}}) {
		CAPTURE(r.width);
		CAPTURE(r.height);
		const TiledImage t = tile_image(v, Image(r.width, r.height));
		REQUIRE(t.tiles.size() == r.columns * r.rows + 1);
		const TiledImage::Tile& whole = t.tiles.back();
		CHECK(whole.pixels.width == r.whole_columns * 32);
		CHECK(whole.pixels.height == r.whole_rows * 32);
		CHECK(whole.before == (r.rows ? "<|img_thumbnail|>" : "<|image_start|>"));
		CHECK(t.end == "<|image_end|>");
		if (!r.rows) continue;
		CHECK(t.tiles[0].before == "<|image_start|><|img_row_1_col_1|>");
		CHECK(t.tiles[t.tiles.size() - 2].before == fmt::format("<|img_row_{}_col_{}|>", r.rows, r.columns));
		CHECK(t.tiles[0].pixels.width == 512);
	}
}

// image_processing of NVIDIA-Nemotron-Nano-12B-v2-VL, as in vLLM: InternVL's rule.
TEST_CASE(
    "vision files: Nemotron's images become squares of the nearest shape, and the whole where there are several") {
	const VisionConfig v = read_vision(Gguf::open(file_of("nemotron_v2_vl")), text_model());
	struct Row {
		uint32_t width, height, columns, rows;
	};
	for (const Row& r : {Row{16, 16, 1, 1}, Row{3, 5, 2, 3}, Row{32, 16, 2, 1}, Row{100, 100, 3, 3}, Row{23, 23, 2, 2},
	                     Row{200, 10, 12, 1}, Row{64, 48, 4, 3}, Row{10, 40, 1, 4}}) {
		CAPTURE(r.width);
		CAPTURE(r.height);
		const TiledImage t = tile_image(v, Image(r.width, r.height));
		const uint32_t n = r.columns * r.rows;
		CHECK(t.tiles.size() == n + (n > 1));
		CHECK(t.tiles.back().pixels.width == 16);
		CHECK(t.tiles.back().pixels.height == 16);
		CHECK(t.tiles[0].before == "<img>");
		CHECK(t.end == "</img>");
	}
	has(with_u32("nemotron_v2_vl", "image_size", 20), "no multiple of 2 x 2 patches of 4");
}

// The expected numbers are those of get_sliced_grid(), find_best_resize() and get_refine_size() of transformers 5.24.
TEST_CASE("vision files: MiniCPM-V's images become the whole and slices of as many pixels as a square") {
	struct Row {
		uint32_t width, height, columns, rows;
		Image whole, part; // sizes, in pixels
	};
	const auto check = [](const char* name, uint32_t version, std::initializer_list<Row> rows) {
		GgufBuilder b = encoder(name);
		if (version) b.u32("clip.minicpmv_version", version);
		const std::vector<std::byte> bytes = b.bytes();
		VisionConfig v = read_vision(Gguf::parse("test.gguf", bytes), text_model(name));
		v.patch = 14, v.image_size = v.square = 448; // as published
		for (const Row& r : rows) {
			CAPTURE(r.width);
			CAPTURE(r.height);
			const TiledImage t = tile_image(v, Image(r.width, r.height));
			REQUIRE(t.tiles.size() == 1 + r.columns * r.rows);
			const auto sized = [](const Image& x, const Image& y) {
				return x.width == y.width && x.height == y.height;
			};
			CHECK(sized(t.tiles[0].pixels, r.whole));
			CHECK(t.tiles[0].before == "<image>");
			CHECK(t.end == (!r.rows ? "</image>" : version == 2 ? "</image></slice>" : "</slice>"));
			const std::string open = version == 2 ? "<image>" : "<slice>",
			                  close = version == 2 ? "</image>" : "</slice>";
			for (uint32_t i = 1; i < t.tiles.size(); ++i) {
				CHECK(sized(t.tiles[i].pixels, r.part));
				const std::string first = version == 2 ? "</image><slice>" : "</image>";
				CHECK(t.tiles[i].before == (i == 1                     ? first + open
				                            : (i - 1) % r.columns == 0 ? close + "\n" + open
				                                                       : close + open));
			}
		}
	};
	const std::initializer_list<Row> single = {
	    {448, 448, 0, 0, Image(448, 448), Image(1, 1)},       {200, 100, 0, 0, Image(630, 322), Image(1, 1)},
	    {449, 448, 2, 1, Image(448, 448), Image(322, 630)},   {640, 480, 2, 1, Image(518, 392), Image(364, 546)},
	    {600, 600, 1, 2, Image(448, 448), Image(630, 322)},   {700, 700, 2, 2, Image(448, 448), Image(448, 448)},
	    {1920, 1080, 4, 2, Image(602, 336), Image(420, 476)}, {3000, 400, 7, 1, Image(1218, 168), Image(462, 434)},
	    {400, 3000, 1, 7, Image(168, 1232), Image(434, 462)}, {4000, 3000, 3, 3, Image(518, 392), Image(518, 392)},
	    {1000, 10, 0, 0, Image(4396, 42), Image(1, 1)},       {500, 300, 0, 0, Image(574, 350), Image(1, 1)},
	    {1344, 896, 3, 2, Image(546, 364), Image(448, 448)}};
	check("resampler", 0, single);
	check("resampler", 2,
	      {{200, 100, 0, 0, Image(630, 322), Image(1, 1)}, {700, 700, 2, 2, Image(448, 448), Image(448, 448)}});
	check("minicpmv4_6", 0,
	      {{200, 100, 0, 0, Image(616, 336), Image(1, 1)},
	       {640, 480, 2, 1, Image(504, 392), Image(392, 560)},
	       {1920, 1080, 4, 2, Image(616, 336), Image(448, 448)},
	       {3000, 400, 7, 1, Image(1232, 168), Image(448, 448)},
	       {1000, 10, 0, 0, Image(4424, 56), Image(1, 1)}});
	const VisionConfig v = read_vision(Gguf::open(file_of("minicpmv4_6")), text_model());
	for (const auto& [width, height] : {std::pair(1u, 32768u), {32768u, 1u}, {1u, 1u}, {500u, 400u}})
		for (const TiledImage::Tile& t : tile_image(v, Image(width, height)).tiles)
			CHECK(t.pixels.width / v.patch * (t.pixels.height / v.patch) <= v.most_patches());
	CHECK(numbered("<{image}>", {{"image", 12}}) == "<12>");
}

TEST_CASE("vision files: MiniCPM-V's learned queries and its merger among the layers") {
	GgufBuilder b = encoder("resampler");
	const auto query = std::ranges::find(b.tensors, "resampler.query", [](const auto& t) { return t.name; });
	REQUIRE(query != b.tensors.end());
	query->dims = {64, 80};
	has(refusal(b, text_model("resampler")),
	    "tensor resampler.query is 80 x 64; kvrun runs up to 1024 rows of heads of 128");
	query->dims = {2, 2560};
	has(refusal(b, text_model("resampler")), "tensor resampler.query is 2560 x 2");
	b = encoder("resampler");
	b.u32("clip.minicpmv_version", 1);
	has(refusal(b, text_model("resampler")), "key clip.minicpmv_version is 1, MiniCPM-V 2.0");
	b = encoder("minicpmv4_6");
	b.numbers("clip.vision.wa_layer_indexes", GgufType::I32, std::vector<int32_t>{2});
	has(refusal(b), "key clip.vision.wa_layer_indexes is 2, expected 0 to 1");
	b = encoder("minicpmv4_6");
	b.u32("clip.vision.projector.scale_factor", 2); // of files without the merger
	CHECK(refusal(b) == "");
}

TEST_CASE("vision files: Llama 4's images become squares that change their size least, and the whole") {
	VisionConfig v = read_vision(Gguf::open(file_of("llama4")), text_model());
	v.patch = 14, v.image_size = v.square = 336; // as published
	struct Row {
		uint32_t width, height, columns, rows, inner_width, inner_height; // of the image in the squares
	};
	for (const Row& r : {Row{200, 100, 1, 1, 336, 168},
	                     {336, 336, 1, 1, 336, 336},
	                     {640, 480, 2, 2, 640, 480},
	                     {700, 700, 3, 3, 700, 700},
	                     {1920, 1080, 5, 3, 1680, 945},
	                     {3000, 400, 8, 2, 2688, 358},
	                     {400, 3000, 2, 8, 358, 2688},
	                     {4000, 3000, 4, 3, 1344, 1008},
	                     {500, 100, 2, 1, 500, 100},
	                     {30, 1000, 1, 3, 30, 1000},
	                     {337, 336, 2, 1, 337, 336},
	                     {1344, 1344, 4, 4, 1344, 1344},
	                     {5000, 5000, 4, 4, 1344, 1344},
	                     {60, 3, 1, 1, 336, 16}}) {
		CAPTURE(r.width);
		CAPTURE(r.height);
		const TiledImage t = tile_image(v, Image(r.width, r.height, {255, 255, 255}));
		const bool alone = r.columns * r.rows == 1;
		REQUIRE(t.tiles.size() == r.columns * r.rows + !alone);
		const auto pixel = [&](uint32_t x, uint32_t y) {
			return t.tiles[y / 336 * r.columns + x / 336].pixels.rgb[(y % 336 * 336 + x % 336) * 3];
		};
		CHECK(pixel(r.inner_width - 1, r.inner_height - 1) == 255);
		if (r.inner_width < r.columns * 336) CHECK(pixel(r.inner_width, 0) == 0);
		if (r.inner_height < r.rows * 336) CHECK(pixel(0, r.inner_height) == 0);
		CHECK(t.tiles[0].before == (alone ? "<|image_start|><|image|>" : "<|image_start|>"));
		if (alone) continue;
		if (r.columns > 1) CHECK(t.tiles[1].before == "<|tile_x_separator|>");
		if (r.rows > 1) CHECK(t.tiles[r.columns].before == "<|tile_y_separator|>");
		CHECK(t.tiles.back().before == "<|tile_y_separator|><|image|>");
		CHECK(t.tiles.back().pixels.rgb[3 * 336 * 336 - 1] == 255);
	}
}

TEST_CASE("vision files: hostile sizes are refused by name, before memory is taken for them") {
	for (const uint32_t x : {0u, 1u << 31, UINT32_MAX})
		for (const char* key : {"embedding_length", "block_count", "attention.head_count", "feed_forward_length",
		                        "image_size", "patch_size", "projector.scale_factor", "preproc_max_tiles"}) {
			CAPTURE(key);
			CAPTURE(x);
			CHECK(!with_u32("internvl", key, x).empty());
		}
	has(with_u32("internvl", "image_size", 8192), "pixels in all");
	GgufBuilder wide = encoder("gemma4v"); // pixels of a row: 2^32
	wide.u32("clip.vision.image_size", 8192).u32("clip.vision.patch_size", 8192);
	CHECK(!refusal(wide.u32("clip.vision.projector.scale_factor", 8), text_model("gemma4v")).empty());
	has(with_u32("idefics3", "preproc_image_size", 8000), "tiles of");
	has(with_u32("idefics3", "preproc_image_size", 1 << 20), "preproc_image_size");
	has(with_u32("pixtral", "spatial_merge_size", 16), "patches");
	has(with_u32("mlp", "patch_size", 5), "no multiple");
	has(with_u32("exaone4_5", "attention.head_count_kv", 2), "3 heads share 2 heads of keys and values");
	has(with_u32("exaone4_5", "attention.head_count_kv", 0), "3 heads share 0 heads of keys and values");
	has(with_u32("exaone4_5", "window_size", 7), "windows of 7 pixels hold no 2 x 2 patches of 4");
	for (const float limit : {0.f, -1.f, NAN}) {
		GgufBuilder b = encoder("glm5v");
		has(refusal(b.f32("clip.vision.swiglu_clamp", limit)), "swiglu_clamp");
	}
	has(with_u32("mlp", "attention.head_count", 2), "in heads multiples of 8");
	has(with_u32("internvl", "preproc_min_tiles", 7), "preproc_min_tiles");
	GgufBuilder b = encoder("mlp");
	b.text("clip.projector_type", "resampler\n");
	has(refusal(b), "projector 'resampler\\n' is not supported; kvrun runs mlp, idefics3, ");
	for (const float eps : {-1.f, NAN, INFINITY, 2.f}) {
		b = encoder("mlp");
		b.f32("clip.vision.attention.layer_norm_epsilon", eps);
		CHECK(!refusal(b).empty());
	}
	has(refusal(GgufBuilder::copy_as(Gguf::open(file_of("text")), "llama")), "is no vision encoder");
	has(error_of([] { read_config(Gguf::open(file_of("mlp"))); }), "give a vision encoder with --mmproj");
}

TEST_CASE("vision files: tensors that are missing or have another shape are refused by name") {
	BackendOptions o;
	o.device = "cpu";
	const std::unique_ptr<Backend> cpu = open_backend(o);
	for (const Projector& p : projectors()) {
		if (p.last_version) continue;
		CAPTURE(p.name);
		const GgufBuilder whole = encoder(p.name);
		for (size_t i = 0; i < whole.tensors.size(); ++i) {
			const std::string name = whole.tensors[i].name;
			CAPTURE(name);
			const auto load = [&](const GgufBuilder& b) {
				const std::vector<std::byte> bytes = b.bytes();
				const Gguf g = Gguf::parse("test.gguf", bytes);
				return refusal_by([&] { load_vision(g, read_vision(g, text_model(p.name)), *cpu); });
			};
			GgufBuilder without = whole;
			without.tensors.erase(without.tensors.begin() + ptrdiff_t(i));
			load(without);               // some are optional
			GgufBuilder shorter = whole; // half of the innermost dimension
			if (shorter.tensors[i].dims[0] % 2 != 0) continue;
			shorter.tensors[i].dims[0] /= 2;
			shorter.tensors[i].data.resize(shorter.tensors[i].data.size() / 2);
			const std::string wrong = load(shorter);
			const bool unused = name.starts_with("v.blk.2.") || name == "resampler.pos_embed_k"; // the first by mlp
			CHECK((!wrong.empty() || unused));
		}
	}
}
