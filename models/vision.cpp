// Vision encoders as llama.cpp's mmproj files describe them.
#include "models/vision.h"
#include "engine/core/utf8.h"
#include "models/config_keys.h"
#include "models/encoder_keys.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <xxhash.h>

namespace kvrun {
namespace {

std::string projector_names() {
	std::string all;
	for (const Projector& p : projectors())
		if (!p.last_version) all += fmt::format("{}{}", all.empty() ? "" : ", ", p.name);
	return all;
}

void read_colours(const Gguf& g, const char* key, bool positive, float (&out)[3]) {
	const std::vector<float> v = g.floats(key);
	const auto usable = [&](float x) { return std::isfinite(x) && (!positive || x > 0); };
	if (v.size() < 3 || !std::ranges::all_of(v, usable))
		fail(Code::Format, "{}: key {} needs three {}numbers; the file is damaged", g.name(), key,
		     positive ? "positive " : "");
	std::copy_n(v.begin(), 3, out);
}

constexpr uint32_t kWindowEdge = 112; // pixels, of files that do not say
constexpr uint32_t kMostClassTokens = 64, kMostQueries = 1024;
constexpr uint32_t kMostEdge = 1 << 13;

Config transformer_of(const Gguf& g, const Projector& p) {
	Config c;
	c.arch = "clip", c.encodes = true;
	c.dim = sized(g, "clip.vision.embedding_length", kMostEncoderDim);
	c.norm = p.norm, c.norm_eps = norm_epsilon(g, "clip.vision.attention.layer_norm_epsilon");
	if (p.bare) { // the least that heads may be, which nothing reads
		c.n_heads = c.n_kv_heads = 1, c.head_dim = 8;
		c.ropes = {{.dim = c.head_dim}};
		return c;
	}
	const uint32_t layers = sized(g, "clip.vision.block_count", kMostEncoderLayers);
	c.n_heads = sized(g, "clip.vision.attention.head_count", kMostEncoderHeads);
	c.n_kv_heads = g.u32("clip.vision.attention.head_count_kv", c.n_heads);
	if (c.n_kv_heads == 0 || c.n_heads % c.n_kv_heads != 0)
		fail(Code::Format, "{}: {} heads share {} heads of keys and values; the file is damaged", g.name(), c.n_heads,
		     c.n_kv_heads);
	c.head_dim = g.u32("clip.vision.attention.head_dim", c.dim / c.n_heads);
	// Files of Qwen2-VL have other numbers under the key.
	const GgufTensor* up = p.lines ? g.find_tensor("v.blk.0.ffn_up.weight") : nullptr;
	const uint64_t hidden = !up ? 0 : up->cols() == c.dim ? up->rows() : up->cols();
	c.hidden_dim = hidden ? uint32_t(std::min<uint64_t>(hidden, kMostEncoderDim))
	                      : sized(g, "clip.vision.feed_forward_length", kMostEncoderDim);
	if (layers <= p.unused_layers || c.head_dim == 0 || c.head_dim % 8 != 0 || c.head_dim > kMostEncoderHeadDim ||
	    c.dim % 4 != 0 || c.hidden_dim % 4 != 0)
		fail(Code::Unsupported,
		     "{}: {} layers of {} channels, {} in the MLP and {} in a head; kvrun runs at least {} layers, multiples "
		     "of 4, and in heads multiples of 8 up to {}",
		     g.name(), layers, c.dim, c.hidden_dim, c.head_dim, p.unused_layers + 1, kMostEncoderHeadDim);
	c.n_layers = layers - p.unused_layers;
	c.ropes = {{.dim = c.head_dim, .neox = p.rotation.pairs != PatchRotation::Neighbours}};
	const bool gelu = g.flag("clip.use_gelu", false), silu = g.flag("clip.use_silu", false);
	Layer layer;
	layer.n_heads = c.n_heads, layer.n_kv_heads = c.n_kv_heads, layer.head_dim = c.head_dim;
	layer.hidden_dim = c.hidden_dim;
	layer.mlp = g.find_tensor("v.blk.0.ffn_gate.weight") ? MlpKind::Gated : MlpKind::Plain;
	layer.activation = gelu ? Activation::GeluTanh : silu ? Activation::Silu : p.activation;
	layer.attention_scale = p.attention_scale, layer.v_norm = p.unit_values;
	if (g.find("clip.vision.swiglu_clamp")) {
		layer.mlp_limit = g.f32("clip.vision.swiglu_clamp"), layer.limits_gate = true;
		if (!(layer.mlp_limit > 0) || layer.mlp != MlpKind::Gated || layer.activation != Activation::Silu)
			fail(Code::Format,
			     "{}: key clip.vision.swiglu_clamp is {}, expected more than 0 and an MLP with SwiGLU; the file is "
			     "damaged",
			     g.name(), layer.mlp_limit);
	}
	if (g.find_tensor("v.blk.0.attn_q_norm.weight")) layer.qk_norm = QkNorm::Head;
	layer.attn_out_norm = g.find_tensor("v.blk.0.attn_post_norm.weight") != nullptr;
	layer.mlp_out_norm = g.find_tensor("v.blk.0.ffn_post_norm.weight") != nullptr;
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		layer.kv_layer = l;
		c.layers.push_back(layer);
	}
	return c;
}

void limit_rows(const Gguf& g, VisionConfig& v, const ImageRows& rows) {
	const Projector& p = *v.projector;
	if ((rows.least || rows.most) && !p.most_rows)
		fail(Code::Invalid,
		     "{}: an encoder of type {} makes the same number of tokens of every tile; leave the limits "
		     "of an image's tokens out",
		     g.name(), p.name);
	const uint64_t area = uint64_t(v.align()) * v.align(); // pixels of a row
	const auto rows_of = [&](const char* key) { return uint32_t(g.u32(key, 0) / area); };
	const uint32_t least = rows_of("clip.vision.image_min_pixels"), most = rows_of("clip.vision.image_max_pixels");
	v.most_rows = rows.most ? rows.most : std::max(most ? most : p.most_rows, rows.least);
	v.least_rows = rows.least ? rows.least : std::min(least ? least : p.least_rows, v.most_rows);
	if (v.least_rows > v.most_rows)
		fail(Code::Invalid, "an image becomes at least {} tokens and at most {}; the first must not be more",
		     v.least_rows, v.most_rows);
}

// Rows of the last matrix of the projector; 0: it is missing.
uint64_t projected_dim(const Gguf& g, const Projector& p) {
	uint64_t dim = 0;
	for (const Step& s : p.steps) {
		if (s.kind != Step::Matrix && s.kind != Step::Turned && s.kind != Step::GatedMlp) continue;
		const GgufTensor* t =
		    g.find_tensor(std::string(s.tensor) + (s.kind == Step::GatedMlp ? "down.weight" : ".weight"));
		dim = !t ? 0 : s.kind == Step::Turned ? t->cols() : t->rows();
	}
	return dim;
}

constexpr uint64_t kMostPatches = 1 << 16;
// Limits for hostile files: an image must not become more tiles, pixels or rows than published models make of one.
void check_sizes(const Gguf& g, const VisionConfig& v) {
	constexpr uint64_t kMostPixels = 1 << 26, kMostRows = 1 << 20;
	const Projector& p = *v.projector;
	const uint64_t edge = v.square, side = edge / v.patch;
	const uint64_t across = v.longest_edge ? (v.longest_edge + edge - 1) / edge : kMostGridEdge;
	const bool free = p.tiling == Tiling::Free, grid = !free && p.tiling != Tiling::Square;
	const uint64_t tiles = p.tiling == Tiling::GridByEdge ? across * across + 1 : grid ? v.most_tiles + 1 : 1;
	const uint64_t any = uint64_t(v.most_rows) * v.merge * v.merge, patches = free ? any
	                                                                          : p.tiling == Tiling::Slices
	                                                                              ? 2 * side * side
	                                                                              : std::max(any, side * side);
	const uint64_t pixels = free ? patches * v.patch * v.patch : tiles * std::max(edge * edge, any * v.patch * v.patch);
	if (across <= kMostGridEdge && patches <= kMostPatches && pixels <= kMostPixels &&
	    tiles * patches / (v.merge * v.merge) <= kMostRows)
		return;
	fail(Code::Unsupported,
	     "{}: an image becomes up to {} tiles of {} patches, {} pixels in all; kvrun runs up to {} x {}, {} and {}",
	     g.name(), tiles, patches, pixels, kMostGridEdge, kMostGridEdge, kMostPatches, kMostPixels);
}

// Whether the file's table may have another size than its image_size says.
bool own_side(PositionTable t) {
	return t == PositionTable::Bilinear || t == PositionTable::BilinearTenth || t == PositionTable::BilinearAcross ||
	       t == PositionTable::Nearest;
}

// How an image becomes tiles, and their pixels.
void read_tiles(const Gguf& g, const ImageRows& rows, VisionConfig& v) {
	const Projector& p = *v.projector;
	const bool any_size = p.tiling == Tiling::Free && p.table == PositionTable::None && p.sizing != Sizing::Within;
	v.image_size = any_size ? g.u32("clip.vision.image_size", 0) : sized(g, "clip.vision.image_size", kMostEdge);
	v.patch = sized(g, "clip.vision.patch_size", any_size ? kMostEdge : v.image_size);
	if (p.merge != Merge::None || p.bare)
		v.merge = g.u32("clip.vision.projector.scale_factor", g.u32("clip.vision.spatial_merge_size", p.merge_default));
	// it is of use
	const bool sizes =
	    !any_size && p.table != PositionTable::ColumnAndLine && (!own_side(p.table) || p.tiling != Tiling::Free);
	if (v.merge == 0 || v.merge > 16 || (sizes && v.image_size % v.align() != 0))
		fail(Code::Unsupported, "{}: tiles of {} pixels are no multiple of {} x {} patches of {}", g.name(),
		     v.image_size, v.merge, v.merge, v.patch);
	if (p.bare) v.patch *= v.merge, v.merge = 1;
	v.square = p.square ? p.square : v.image_size;
	if (p.square && v.square % v.align() != 0)
		fail(Code::Unsupported, "{}: squares of {} pixels are no multiple of {} x {} patches of {}", g.name(), v.square,
		     v.merge, v.merge, v.patch);
	v.longest_edge = g.u32("clip.vision.preproc_image_size", 0);
	if (v.longest_edge) sized(g, "clip.vision.preproc_image_size", v.longest_edge, kMostEdge);
	v.least_tiles = g.u32("clip.vision.preproc_min_tiles", p.least_tiles);
	v.most_tiles = g.u32("clip.vision.preproc_max_tiles",
	                     g.u32("clip.vision.max_slice_nums", std::max(v.least_tiles, p.most_tiles)));
	sized(g, "clip.vision.preproc_max_tiles", v.most_tiles, 64);
	sized(g, "clip.vision.preproc_min_tiles", v.least_tiles, v.most_tiles);
	limit_rows(g, v, rows);
	check_sizes(g, v);
	read_colours(g, "clip.vision.image_mean", false, v.mean);
	read_colours(g, "clip.vision.image_std", true, v.deviation);
	for (size_t c = 0; c < 3 && p.signed_pixels; ++c) v.deviation[c] /= 2, v.mean[c] += v.deviation[c];
}

// The layer whose attention is that of Projector::inner_merger.
void add_inner_merger(const Gguf& g, VisionConfig& v) {
	constexpr const char* kKey = "clip.vision.wa_layer_indexes";
	constexpr int64_t kUsual = 6; // of files without the key
	Config& c = v.transformer;
	const std::vector<int64_t> behind = g.find(kKey) ? g.ints(kKey) : std::vector<int64_t>{kUsual};
	if (behind.empty() || behind[0] < 0 || behind[0] >= c.n_layers)
		fail(Code::Format, "{}: key {} is {}, expected 0 to {}; the file is damaged", g.name(), kKey,
		     behind.empty() ? "empty" : std::to_string(behind[0]), c.n_layers - 1);
	v.inner_merge = 2, v.inner_layer = uint32_t(behind[0]) + 1;
	Layer layer = c.layers[0];
	layer.mlp = MlpKind::None, layer.mlp_input = MlpInput::Raw;
	c.layers.insert(c.layers.begin() + v.inner_layer, layer);
	c.n_layers = uint32_t(c.layers.size());
	for (uint32_t l = 0; l < c.n_layers; ++l) c.layers[l].kv_layer = l;
}

// The number of learned queries, in heads of kQueryHead channels.
uint32_t query_rows(const Gguf& g, const Step& s) {
	const std::string name = std::string(s.tensor) + "query";
	const GgufTensor* t = g.find_tensor(name);
	if (!t) fail(Code::Format, "{}: tensor {} is missing; get the file again", g.name(), name);
	if (t->rows() == 0 || t->rows() > kMostQueries || t->cols() % kQueryHead != 0 || t->cols() > kMostEncoderDim)
		fail(Code::Unsupported, "{}: tensor {} is {} x {}; kvrun runs up to {} rows of heads of {}", g.name(), name,
		     t->rows(), t->cols(), kMostQueries, kQueryHead);
	return uint32_t(t->rows());
}

// 0: the file has none. llama.cpp's converter writes it with a sign.
uint32_t minicpm_version(const Gguf& g) {
	constexpr const char* kKey = "clip.minicpmv_version";
	const GgufEntry* e = g.find(kKey);
	uint32_t version = 0;
	if (e && e->type == GgufType::I32)
		std::memcpy(&version, e->bytes.data(), sizeof version);
	else
		version = g.u32(kKey, 0);
	if (version == 1)
		fail(Code::Unsupported, "{}: key {} is 1, MiniCPM-V 2.0; kvrun runs those from 2.5 on", g.name(), kKey);
	return version;
}

// What the file's tensors tell of the layers.
void read_layers(const Gguf& g, VisionConfig& v) {
	const Projector& p = *v.projector;
	if (const GgufTensor* t = g.find_tensor("v.class_embd"))
		v.class_tokens = uint32_t(std::clamp<uint64_t>(t->rows(), 1, kMostClassTokens + 1));
	if (v.class_tokens > kMostClassTokens || v.table_class_rows() > 1)
		fail(Code::Unsupported, "{}: tensor v.class_embd has {} rows; kvrun runs up to {}", g.name(), v.class_tokens,
		     v.table_class_rows() ? 1 : kMostClassTokens);
	for (const Step& s : p.steps) {
		if (!s.joins() || (s.optional && !g.find_tensor(s.tensor))) continue;
		v.framed |= s.kind == Step::First;
		v.last_line_ends |= s.kind == Step::Behind;
		v.line_ends |= s.kind == Step::Between || s.kind == Step::Behind;
	}
	for (const Step& s : p.steps)
		if (s.kind == Step::Queries) v.queries = query_rows(g, s);
	for (uint32_t l = 0; l < v.transformer.n_layers; ++l)
		if (g.find_tensor(fmt::format("v.deepstack.{}.fc1.weight", l))) v.deep.push_back(l);
	v.table_side = v.image_size / v.patch;
	if (const GgufTensor* t = g.find_tensor("v.position_embd.weight"); t && own_side(p.table))
		v.table_side = uint32_t(std::sqrt(double(std::min<uint64_t>(t->rows(), kMostPatches))));
	if (*p.inner_merger && v.merge == 4) add_inner_merger(g, v);
	v.window_period = g.u32("clip.vision.n_wa_pattern", p.window_period);
	if (v.class_tokens && (v.window_period || v.inner_merge > 1))
		fail(Code::Unsupported, "{}: it has windows and a class token, which is in none of them", g.name());
	const uint32_t edge = g.u32("clip.vision.window_size", kWindowEdge);
	v.window = v.inner_merge > 1  ? v.inner_merge
	           : !v.window_period ? 0
	           : p.window_period  ? v.table_side
	                              : edge / v.align() * v.merge;
	if (v.window_period && v.window == 0)
		fail(Code::Unsupported, "{}: windows of {} pixels hold no {} x {} patches of {}", g.name(), edge, v.merge,
		     v.merge, v.patch);
	if (const GgufTensor* t = g.find_tensor("v.position_embd.weight"); t && p.table == PositionTable::ColumnAndLine)
		v.table_edge = uint32_t(std::min<uint64_t>(t->rows() / 2, kMostPatches));
	if (p.table == PositionTable::ColumnAndLine && v.table_edge < v.merge)
		fail(Code::Format, "{}: tensor v.position_embd.weight is missing or has too few rows; get the file again",
		     g.name());
	v.limited = g.find_tensor("v.blk.0.attn_q.input_min") != nullptr;
	if (p.bare) return;
	const Layer& layer = v.transformer.layers[0];
	if (v.limited && !(layer.attn_out_norm && layer.mlp_out_norm))
		fail(Code::Unsupported,
		     "{}: its projections have limits, but the outputs of attention and MLP no norms (attn_post_norm, "
		     "ffn_post_norm)",
		     g.name());
	v.layer_scales = g.find_tensor("v.blk.0.ls1.weight") != nullptr;
}

// Whether the rows are those of this model, and how it sees them.
void check_model(const Gguf& g, const Config& model, VisionConfig& v) {
	const Projector& p = *v.projector;
	if (v.deep.size() >= model.n_layers)
		fail(Code::Unsupported,
		     "{}: its rows are for {} layers of the model, which has {}; take the mmproj file of this "
		     "model",
		     g.name(), v.deep.size() + 1, model.n_layers);
	if (p.lines && !model.ropes[0].axes)
		fail(
		    Code::Unsupported,
		    "{}: rows of its images have lines and columns, but the model's file has no key {}.rope.dimension_sections",
		    g.name(), model.arch);
	if (p.lines && model.ropes[0].axes.numbered != v.framed)
		fail(Code::Unsupported,
		     "{}: in models of architecture '{}' rows of images have other positions; take the mmproj file of this "
		     "model",
		     g.name(), one_line(model.arch));
	v.sight = p.sight == Sight::AllInWindows && model.layer_input_dim ? Sight::Before : p.sight;
	for (const Layer& l : model.layers) // rows that see each other are in one window
		if (v.sight == Sight::AllInWindows && l.window) v.most_rows = std::min(v.most_rows, l.window.tokens);
	v.least_rows = std::min(v.least_rows, v.most_rows);
	v.out_dim = g.u32("clip.vision.projection_dim");
	if (const uint64_t dim = projected_dim(g, p)) // old files have other numbers under the key
		v.out_dim = uint32_t(std::min<uint64_t>(dim, kMostEncoderDim));
	if (v.out_dim != model.dim)
		fail(Code::Unsupported, "{}: its rows have {} channels, the model's {}; take the mmproj file of this model",
		     g.name(), v.out_dim, model.dim);
}

} // namespace

bool has_vision(const Gguf& g) {
	return g.text("general.architecture", "") == "clip" && g.flag("clip.has_vision_encoder", false);
}

const Projector& projector_of(const Gguf& g) {
	if (!has_vision(g))
		fail(Code::Unsupported,
		     "{}: it is no vision encoder (general.architecture is '{}', clip.has_vision_encoder is not set); give the "
		     "file whose name begins with mmproj",
		     g.name(), one_line(g.text("general.architecture", "")));
	std::string_view type = g.text("clip.projector_type", g.text("clip.vision.projector_type", ""));
	if (type == "qwen2.5o") type = "qwen2.5vl_merger"; // of a file whose sounds have the same type
	const std::span<const Projector> all = projectors();
	const uint32_t version = minicpm_version(g);
	const auto p = std::ranges::find_if(
	    all, [&](const Projector& x) { return x.name == type && (!x.last_version || version <= x.last_version); });
	if (p == all.end())
		fail(Code::Unsupported, "{}: projector '{}' is not supported; kvrun runs {}", g.name(), one_line(type),
		     projector_names());
	return *p;
}

VisionConfig read_vision(const Gguf& g, const Config& model, const ImageRows& rows) {
	const Projector& p = projector_of(g);
	if (model.streams.n > 1 && !model.streams.hyper())
		fail(Code::Unsupported, "{}: kvrun reads no images for models of architecture '{}'", g.name(),
		     one_line(model.arch));
	VisionConfig v;
	v.projector = &p;
	v.transformer = transformer_of(g, p);
	read_tiles(g, rows, v);
	read_layers(g, v);
	check_model(g, model, v);
	return v;
}

uint64_t image_hash(const Image& image, uint64_t encoder) {
	const uint64_t about[] = {encoder, image.width, image.height};
	return XXH3_64bits_withSeed(image.rgb.data(), image.rgb.size(), XXH3_64bits(about, sizeof about));
}

} // namespace kvrun
