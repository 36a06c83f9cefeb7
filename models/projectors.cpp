// Projector types of vision encoders: a row for each that files name.
#include "models/vision.h"

namespace kvrun {
namespace {

constexpr Step gelu() { return {Step::Activate}; }
constexpr Step exact_gelu() { return {.kind = Step::Activate, .function = Activation::Gelu}; }

constexpr Steps mlp(const char* in, const char* out, Step function = gelu()) {
	return {{{Step::Matrix, in}, function, {Step::Matrix, out}}};
}

constexpr Projector qwen(const char* name, NormKind norm, PositionTable table) {
	return {.name = name,
	        .tiling = Tiling::Free,
	        .resample = Resample::Bicubic,
	        .norm = norm,
	        .table = table,
	        .rotation = {.pairs = PatchRotation::Halves},
	        .swapped_mlp = true,
	        .merge = Merge::Patches,
	        .steps = mlp("mm.0", "mm.2"),
	        .least_rows = 8,
	        .most_rows = 4096,
	        .stretched = true,
	        .lines = true,
	        .begin = "<|vision_start|>",
	        .end = "<|vision_end|>"};
}

constexpr Projector pixtral(std::string_view name) {
	Projector p = {.name = name.data(),
	               .tiling = Tiling::Free,
	               .resample = Resample::Bicubic,
	               .norm = NormKind::Rms,
	               .table = PositionTable::None,
	               .rotation = {.pairs = PatchRotation::Neighbours, .odd = true},
	               .merge = Merge::Channels,
	               .merge_default = 1,
	               .patch_norm = "mm.input_norm",
	               .patch_norm_kind = NormKind::Rms,
	               .steps = {{{Step::Matrix, "mm.patch_merger", /*optional=*/true},
	                          {Step::Matrix, "mm.1"},
	                          gelu(),
	                          {Step::Matrix, "mm.2"},
	                          {Step::Between, "v.token_embd.img_break", /*optional=*/true}}},
	               .least_rows = 8,
	               .most_rows = 1024};
	if (name == "pixtral") {
		p.end = "[IMG_END]";
	} else { // pages
		p.steps[4] = {};
		p.sizing = Sizing::Within, p.stretched = true;
		p.least_rows = 1, p.most_rows = 4096;
		p.begin = "<|im_start|>", p.end = "<|im_end|>";
	}
	return p;
}

// The encoder MoonViT, whose pairs of channels are in another order in files of the second kind.
constexpr Projector moon(const char* name, PatchRotation::By by, uint32_t most_rows, const char* begin,
                         const char* end) {
	return {.name = name,
	        .tiling = Tiling::Free,
	        .resample = Resample::Bicubic,
	        .norm = NormKind::LayerBiased,
	        .table = PositionTable::Bicubic,
	        .rotation = {.pairs = PatchRotation::Neighbours, .by = by},
	        .merge = Merge::Patches,
	        .patch_norm = "mm.input_norm",
	        .steps = mlp("mm.1", "mm.2"),
	        .least_rows = 2,
	        .most_rows = most_rows,
	        .begin = begin,
	        .end = end};
}

// PaddleOCR-VL: Qwen's sizes of tiles and positions, but SigLIP's layers.
constexpr Projector paddle() {
	Projector p = qwen("paddleocr", NormKind::LayerBiased, PositionTable::Bilinear);
	p.swapped_mlp = false;
	p.patch_norm = "mm.input_norm", p.patch_norm_eps = 1e-5f;
	p.steps = mlp("mm.1", "mm.2");
	p.least_rows = 188, p.most_rows = 3009;
	p.begin = "<|IMAGE_START|>", p.end = "<|IMAGE_END|>";
	return p;
}

// Hunyuan-VL: Qwen's sizes of tiles; rows that end lines, and around all.
constexpr Projector hunyuan() {
	Projector p = qwen("hunyuanvl", NormKind::LayerBiased, PositionTable::BilinearTenth);
	p.rotation = {}, p.swapped_mlp = false;
	p.merge = Merge::Channels;
	p.patch_norm = "mm.pre_norm", p.patch_norm_kind = NormKind::Rms;
	p.steps = {{{Step::Matrix, "mm.0"},
	            gelu(),
	            {Step::Matrix, "mm.2"},
	            {Step::Behind, "v.image_newline"},
	            {Step::Matrix, "mm.model.fc"},
	            {Step::First, "mm.image_begin"},
	            {Step::Last, "mm.image_end"},
	            {Step::RmsNorm, "mm.post_norm"}}};
	p.least_rows = 256;
	p.begin = "<｜hy_place▁holder▁no▁100｜>";
	p.end = "<｜hy_place▁holder▁no▁101｜>";
	return p;
}

// dots.ocr: Qwen's sizes of tiles and rotation, but rows of its images have positions as text.
constexpr Projector dots() {
	Projector p = qwen("dots_ocr", NormKind::Rms, PositionTable::None);
	p.swapped_mlp = p.lines = false;
	p.post_norm = "mm.post_norm";
	p.patch_norm = "mm.input_norm", p.patch_norm_eps = 1e-6f;
	p.steps = mlp("mm.0", "mm.2", exact_gelu());
	p.least_rows = 4, p.most_rows = 14400;
	p.begin = "<|img|>", p.end = "<|endofimg|>";
	return p;
}

// EXAONE 4.5: Qwen 2.5's with fewer heads of k and v; positions as text.
constexpr Projector exaone() {
	Projector p = qwen("exaone4_5", NormKind::Rms, PositionTable::None);
	p.swapped_mlp = p.lines = false;
	p.begin = "<vision>", p.end = "</vision>";
	return p;
}

// GLM-4.1V to 4.6V; GLM-5.3 Flash
constexpr Projector glm(std::string_view name) {
	Projector p = {.name = name.data(),
	               .tiling = Tiling::Free,
	               .resample = Resample::Bicubic,
	               .norm = NormKind::Rms,
	               .table = PositionTable::Bicubic,
	               .rotation = {.pairs = PatchRotation::Halves},
	               .merge = Merge::Channels,
	               .steps = {{{Step::Matrix, "mm.patch_merger"},
	                          {Step::Matrix, "mm.model.fc"},
	                          {Step::LayerNorm, "mm.post_norm"},
	                          gelu(),
	                          {Step::GatedMlp, "mm."}}},
	               .least_rows = 8,
	               .most_rows = 4096,
	               .begin = "<|begin_of_image|>",
	               .end = "<|end_of_image|>"};
	if (name == "glm4v") {
		p.stretched = p.lines = true;
	} else {
		p.table = PositionTable::None;
		p.sizing = Sizing::Canvas;
		p.least_rows = 16, p.most_rows = 8000;
	}
	return p;
}

// MiniCPM-V 4.6: SigLIP whose patches are merged twice.
constexpr Projector minicpm() {
	return {.name = "minicpmv4_6",
	        .tiling = Tiling::Slices,
	        .resample = Resample::Bicubic,
	        .norm = NormKind::LayerBiased,
	        .table = PositionTable::Nearest,
	        .merge = Merge::Patches,
	        .merge_default = 4,
	        .inner_merger = "v.vit_merger.",
	        .steps = {{{Step::LayerNorm, "mm.input_norm"},
	                   {Step::Matrix, "mm.up"},
	                   exact_gelu(),
	                   {Step::Matrix, "mm.down"}}},
	        .step_eps = 1e-6f,
	        .most_tiles = 9,
	        .tile = "<slice>",
	        .tile_end = "</slice>",
	        .tile_row_end = "\n",
	        .overview = "<image>",
	        .overview_end = "</image>",
	        .number = "<image_id>{image}</image_id>"};
}

// MiniCPM-V and MiniCPM-o 2.5 to 4.5: SigLIP and a resampler. Up to version 2: MiniCPM-Llama3-V 2.5.
constexpr Projector resampler(uint32_t last_version) {
	Projector p = minicpm();
	p.name = "resampler", p.last_version = last_version;
	p.swapped_mlp = true;
	p.merge = Merge::None, p.inner_merger = "";
	p.steps = {{{Step::Matrix, "resampler.kv"},
	            {Step::LayerNorm, "resampler.ln_kv"},
	            {Step::Queries, "resampler."},
	            {Step::LayerNorm, "resampler.ln_post"},
	            {Step::Matrix, "resampler.proj"}}};
	if (last_version) {
		p.tile = "<image>", p.tile_end = "</image>";
		p.grid_begin = "<slice>", p.grid_end = "</slice>";
		p.number = "";
	}
	return p;
}

constexpr Projector kProjectors[] = {
    // LLaVA 1.5
    {.name = "mlp",
     .tiling = Tiling::Square,
     .resample = Resample::Bicubic,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::Square,
     .unused_layers = 1,
     .swapped_mlp = true,
     .steps = mlp("mm.0", "mm.2"),
     .border = {122, 116, 104}},
    // Idefics 3, SmolVLM, SmolVLM2, Granite-Docling
    {.name = "idefics3",
     .tiling = Tiling::GridByEdge,
     .resample = Resample::Lanczos,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::Square,
     .swapped_mlp = true,
     .merge = Merge::Patches,
     .steps = {{{Step::Matrix, "mm.model.fc"}}},
     .tile = "<fake_token_around_image><row_{row}_col_{column}>",
     .tile_row_end = "\n",
     .overview = "\n\n<fake_token_around_image><global-img>",
     .overview_end = "<fake_token_around_image>"},
    pixtral("pixtral"),    // Pixtral, Mistral Small 3.1 and 3.2, Ministral 3
    pixtral("lightonocr"), // LightOnOCR
    // Gemma 3
    {.name = "gemma3",
     .tiling = Tiling::Square,
     .resample = Resample::Bilinear,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::Square,
     .swapped_mlp = true,
     .merge = Merge::Mean,
     .merge_default = 4,
     .steps = {{{Step::RmsNorm, "mm.soft_emb_norm"}, {Step::Turned, "mm.input_projection"}}},
     .stretched = true,
     .scaled = false,
     .sight = Sight::All,
     .begin = "\n\n<start_of_image>",
     .end = "<end_of_image>\n\n"},
    // Gemma 4
    {.name = "gemma4v",
     .tiling = Tiling::Free,
     .resample = Resample::Bicubic,
     .norm = NormKind::Rms,
     .table = PositionTable::ColumnAndLine,
     .rotation = {.pairs = PatchRotation::Quarters, .by = PatchRotation::ColumnThenLine, .theta = 100},
     .activation = Activation::GeluTanh,
     .attention_scale = 1,
     .unit_values = true,
     .merge = Merge::Mean,
     .merge_default = 3,
     .mean_scaled = true,
     .steps = {{{Step::UnitNorm}, {Step::Matrix, "mm.input_projection"}}},
     .least_rows = 1,
     .most_rows = 280,
     .stretched = true,
     .scaled = false,
     .signed_pixels = true,
     .sizing = Sizing::Filled,
     .sight = Sight::AllInWindows,
     .begin = "<|image>",
     .end = "<image|>"},
    // Gemma 4 12B: one matrix reads the pixels
    {.name = "gemma4uv",
     .tiling = Tiling::Free,
     .resample = Resample::Bicubic,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::ColumnAndLine,
     .bare = true,
     .pixel_norm = "v.patch_norm.1",
     .embedded_norm = "v.patch_norm.2",
     .pre_norm = "v.patch_norm.3",
     .embedding_eps = 1e-5f,
     .merge_default = 3,
     .steps = {{{Step::UnitNorm}, {Step::Matrix, "mm.input_projection"}}},
     .least_rows = 1,
     .most_rows = 280,
     .stretched = true,
     .scaled = false,
     .sizing = Sizing::Filled,
     .sight = Sight::AllInWindows,
     .begin = "<|image>",
     .end = "<image|>"},
    // LFM2-VL, LFM2.5-VL
    {.name = "lfm2",
     .tiling = Tiling::GridByShape,
     .resample = Resample::Bilinear,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::Antialiased,
     .merge = Merge::Patches,
     .steps = {{{Step::LayerNorm, "mm.input_norm", /*optional=*/true},
                {Step::Matrix, "mm.1"},
                gelu(),
                {Step::Matrix, "mm.2"}}},
     .least_rows = 64,
     .most_rows = 256,
     .square = 512,
     .least_tiles = 2,
     .most_tiles = 10,
     .stretched = true,
     .begin = "<|image_start|>",
     .end = "<|image_end|>",
     .tile = "<|img_row_{row}_col_{column}|>",
     .overview = "<|img_thumbnail|>"},
    // Llama 4
    {.name = "llama4",
     .tiling = Tiling::GridByFit,
     .resample = Resample::Bilinear,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::SquareThenClass,
     .rotation = {.pairs = PatchRotation::Neighbours, .by = PatchRotation::ColumnThenLine, .first = 1},
     .merge = Merge::Patches,
     .steps = {{{Step::Matrix, "mm.model.mlp.1"},
                gelu(),
                {Step::Matrix, "mm.model.mlp.2"},
                gelu(),
                {Step::Matrix, "mm.model.fc"}}},
     .most_tiles = 16,
     .begin = "<|image_start|>",
     .end = "<|image_end|>",
     .tile_between = "<|tile_x_separator|>",
     .tile_row_end = "<|tile_y_separator|>",
     .overview = "<|tile_y_separator|><|image|>",
     .alone = "<|image|>"},
    // InternVL 2.5, 3 and 3.5
    {.name = "internvl",
     .tiling = Tiling::GridByArea,
     .resample = Resample::Bicubic,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::Square,
     .merge = Merge::Patches,
     .steps = {{{Step::LayerNorm, "mm.model.mlp.0"},
                {Step::Matrix, "mm.model.mlp.1"},
                gelu(),
                {Step::Matrix, "mm.model.mlp.3"}}},
     .begin = "<img>",
     .end = "</img>"},
    // Nemotron Nano 2 VL, Nemotron 3 Nano Omni
    {.name = "nemotron_v2_vl",
     .tiling = Tiling::GridByRatio,
     .resample = Resample::Bicubic,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::Bilinear,
     .merge = Merge::Patches,
     .steps = {{{Step::RmsNorm, "mm.model.mlp.0"},
                {Step::Matrix, "mm.model.mlp.1"},
                {.kind = Step::Activate, .function = Activation::Relu2},
                {Step::Matrix, "mm.model.mlp.3"}}},
     .step_eps = 1e-5f,
     .begin = "<img>",
     .end = "</img>"},
    moon("kimivl", PatchRotation::ColumnAndLine, 1024, "<|media_start|>image<|media_content|>",
         "<|media_end|>"), // Kimi-VL
    moon("kimik25", PatchRotation::ColumnThenLine, 4096, "<|media_begin|>image<|media_content|>",
         "<|media_end|>"),                                                 // Kimi K2.5
    qwen("qwen2vl_merger", NormKind::LayerBiased, PositionTable::None),    // Qwen2-VL
    qwen("qwen2.5vl_merger", NormKind::Rms, PositionTable::None),          // Qwen2.5-VL
    qwen("qwen3vl_merger", NormKind::LayerBiased, PositionTable::Corners), // Qwen3-VL, Qwen3.5
    paddle(),                                                              // PaddleOCR-VL
    hunyuan(),                                                             // HunyuanOCR, Hunyuan-VL
    dots(),                                                                // dots.ocr
    exaone(),                                                              // EXAONE 4.5
    glm("glm4v"),                                                          // GLM-4.1V, GLM-4.5V, GLM-4.6V, GLM-OCR
    glm("glm5v"),                                                          // GLM-5.3 Flash
    // Phi-4 Reasoning Vision
    {.name = "phi4",
     .tiling = Tiling::Free,
     .resample = Resample::Bilinear,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::Antialiased,
     .steps = mlp("mm.0", "mm.2"),
     .least_rows = 256,
     .most_rows = 3600,
     .stretched = true},
    minicpm(),    // MiniCPM-V 4.6
    resampler(2), // MiniCPM-Llama3-V 2.5
    resampler(0), // MiniCPM-V 2.6, 4.0, 4.5; MiniCPM-o 2.6, 4.5
    // Muse Glimmer
    {.name = "muse-glimmer",
     .tiling = Tiling::Free,
     .resample = Resample::Lanczos,
     .norm = NormKind::LayerBiased,
     .table = PositionTable::BilinearAcross,
     .rotation = {.pairs = PatchRotation::Neighbours, .by = PatchRotation::ColumnThenLine, .first = 1},
     .activation = Activation::Gelu,
     .merge = Merge::Channels,
     .steps = {{{Step::Matrix, "mm.0"},
                exact_gelu(),
                {Step::Matrix, "mm.1"},
                exact_gelu(),
                {Step::Matrix, "mm.2"},
                {Step::UnitNorm}}},
     .least_rows = 1,
     .most_rows = 4096,
     .stretched = true,
     .sizing = Sizing::Shape,
     .window_period = 4,
     .begin = "<|image_start|>",
     .end = "<|image_end|>"},
};

} // namespace

std::span<const Projector> projectors() { return kProjectors; }

} // namespace kvrun
