// Vision encoders: from an image to rows of the model's residual stream, as llama.cpp's mmproj files describe them
// (architecture "clip"). A transformer reads patches of pixels, a projector makes rows of the model of them.
#pragma once
#include "engine/core/image.h"
#include "models/config.h"
#include "models/projection.h"
#include <algorithm>

namespace kvrun {

// How an image becomes tiles that the encoder reads one by one.
enum class Tiling : uint8_t {
	Square,     // one tile: fitted into the square, with a border
	Free,       // one tile of any size within limits
	GridByEdge, // squares that cover the image, its longest edge set by the file; then the whole image as one square
	GridByArea, // squares in the arrangement that keeps most pixels; then the whole image. Small images: it alone
	// Squares in the arrangement whose shape is nearest to the image's; then the whole image as Free. Images of less
	// than twice the most pixels of Free: it alone.
	GridByShape,
	// The same of images of any size; then the whole image as one square, where there are several.
	GridByRatio,
	// Squares in the arrangement that changes the size least, with a border; then the whole image, stretched. What fits
	// into one square: it alone, with a border.
	GridByFit,
	// The whole image with as many pixels as a square, in its shape; then parts of such sizes in the arrangement whose
	// logarithm of the shape is nearest to the image's. Images of no more pixels than a square: the whole alone.
	Slices,
};
// How neighbouring patches, merge x merge, become one row of the projector.
enum class Merge : uint8_t {
	None,
	Patches,  // channels of the first patch, of the second, ..
	Channels, // first channels of all patches, second channels, ..
	Mean,     // their mean
};
// What is added to a patch for its place. Class tokens are behind the patches.
enum class PositionTable : uint8_t {
	None,
	Square,          // a row for each patch of the square tile; with a class token the first row is its
	SquareThenClass, // the same, but the last row is the class token's
	// The same without rows for class tokens, resized to the tile:
	Corners,       // bilinear, corners on corners
	Antialiased,   // bilinear, as an image is resized
	Bicubic,       // a = -0.75, without averaging
	Bilinear,      // without averaging; the file's table may have another size than image_size says
	BilinearTenth, // the same, as if the tile had a tenth of a patch more in each direction
	// Bilinear, zeros around the table. Patch i of h lines of w columns takes place i of w lines of h columns: the
	// models were trained so.
	BilinearAcross,
	Nearest,       // the file's table may have another size than image_size says
	ColumnAndLine, // two tables: a row of the first by the patch's column, and one of the second by its line
};
// Rotation of a head's channels by the patch's line and column. Of `pairs` pairs of channels, pair k of each half has
// the frequency theta^(-2k / pairs).
struct PatchRotation {
	enum Pairs : uint8_t {
		None,
		Neighbours, // channels 2i and 2i + 1
		Halves,     // channels i and i + head_dim / 2
		Quarters,   // channels i and i + head_dim / 4 of each half
	} pairs = None;
	// Which number turns a pair.
	enum By : uint8_t {
		LineThenColumn, // the line turns the first half of the pairs, the column the second
		ColumnThenLine,
		ColumnAndLine, // alternately
	} by = LineThenColumn;
	bool odd = false; // the second half has the frequencies between those of the first, theta^(-(2k + 1) / pairs)
	float theta = 10000;
	uint32_t first = 0; // number of the first line and column; a class token has 0
};

// Which rows of its image a row sees in the model, besides those before it.
enum class Sight : uint8_t {
	Before,
	All,          // all of them, also across a window
	AllInWindows, // in layers with a window all of them; not in models with layer inputs (Config::layer_input_dim)
};

// The size of a tile of Tiling::Free: multiples of VisionConfig::align().
enum class Sizing : uint8_t {
	Nearest, // that of the image, rounded
	Within,  // the same, no edge longer than clip.vision.image_size
	Filled,  // as many rows as there may be, in the image's shape
	Shape,   // of the sizes around the image's, or of the most rows, the one whose shape is nearest to the image's
	Canvas,  // rounded up; the image, which is made smaller where it must be, lies in its first corner
};

constexpr uint32_t kMostGridEdge = 16; // squares along an edge of Tiling::GridByEdge

// What a projector type of the files means: a row of the table in vision.cpp.
struct Projector {
	const char* name;          // clip.projector_type
	uint32_t last_version = 0; // clip.minicpmv_version is no larger; 0: it is any that no row before takes
	Tiling tiling;
	Resample resample;
	NormKind norm; // of the transformer
	PositionTable table;
	PatchRotation rotation = {};
	bool bare = false;           // no transformer; a patch has the pixels of `merge` x `merge`
	const char* pixel_norm = ""; // LayerNorm of a patch's pixels; "": none
	// Norms of the transformer's kind, if the file has them: of patches before and after their positions are added.
	const char *embedded_norm = "v.norm_embd", *pre_norm = "v.pre_ln";
	float embedding_eps = 0;                       // of these two; 0: the transformer's
	const char* post_norm = "v.post_ln";           // behind the layers
	Activation activation = Activation::GeluQuick; // of files that name none
	float attention_scale = 0;                     // as in Layer
	bool unit_values = false;                      // each head of v is divided by its RMS
	uint32_t unused_layers = 0;                    // last layers of the file whose output nothing reads
	bool swapped_mlp = false; // old files have the names of ffn_up and ffn_down the wrong way round
	Merge merge = Merge::None;
	uint32_t merge_default = 2; // patches in each direction, of files that do not say
	// Attention in squares of 2 x 2 patches, which then become one, among the layers; names of its tensors begin so.
	// Files whose merge is 4 have it.
	const char* inner_merger = "";
	const char* patch_norm = ""; // of patches before they are merged, if the file has it
	NormKind patch_norm_kind = NormKind::LayerBiased;
	float patch_norm_eps = 0; // 0: the transformer's
	bool mean_scaled = false; // means are multiplied by sqrt(channels), and then standardised if the file says how
	Steps steps = {};
	float step_eps = 0; // of norms among them; 0: 1e-5 of LayerNorms, the transformer's of RMS norms
	uint32_t least_rows = 0, most_rows = 0;    // of the model, of a tile of any size; a user may change them
	uint32_t square = 0;                       // pixels: edge of a square of a grid; 0: clip.vision.image_size
	uint32_t least_tiles = 1, most_tiles = 12; // of grids, of files that do not say
	Rgb border = {0, 0, 0};
	bool stretched = false;     // the image takes the shape of the tile, without a border
	bool scaled = true;         // rows are multiplied by Config::embedding_scale, as embeddings are
	bool signed_pixels = false; // after mean and deviation pixels in 0 .. 1 become -1 .. 1
	Sizing sizing = Sizing::Nearest;
	Sight sight = Sight::Before;
	uint32_t window_period = 0; // VisionConfig::window_period of files that do not say, windows as large as the table
	bool lines = false;         // in the model, rows have positions in two directions (Rope::axes)
	// Texts around tiles, with control tokens; {row} and {column} count from 1.
	const char *begin = "", *end = "";             // of the image
	const char* tile = "";                         // before each square of a grid
	const char* tile_end = "";                     // behind each
	const char* tile_between = "";                 // between the squares of a row
	const char* tile_row_end = "";                 // behind each row of squares but the last
	const char *grid_begin = "", *grid_end = "";   // around all squares
	const char *overview = "", *overview_end = ""; // around the whole image of a grid
	const char* alone = "";                        // before an image without a grid
	const char* number = "";                       // before all; {image} counts the images of a prompt from 0
};
std::span<const Projector> projectors();

// A user's limits for the rows of an image, or of its overview, that may have any size; 0: the projector's.
struct ImageRows {
	uint32_t least = 0, most = 0;
	uint64_t bits() const { return uint64_t(most) << 32 | least; }
};

struct VisionConfig {
	const Projector* projector = nullptr;
	uint32_t image_size = 0, patch = 0;        // pixels: edge of a square tile, edge of a patch
	uint32_t square = 0;                       // pixels: edge of a square of a grid
	uint32_t merge = 1;                        // patches in each direction that become one row
	uint32_t inner_merge = 1;                  // of these, by Projector::inner_merger
	uint32_t inner_layer = 0;                  // the layer that is its attention; counts as one of the transformer's
	uint32_t longest_edge = 0;                 // pixels, of Tiling::GridByEdge; 0: that of the image
	uint32_t least_tiles = 1, most_tiles = 12; // of grids
	uint32_t least_rows = 0, most_rows = 0;    // of the model, of a tile of any size
	float mean[3] = {}, deviation[3] = {};     // of pixels in 0 .. 1
	uint32_t out_dim = 0;                      // channels of the model
	uint32_t class_tokens = 0;                 // more rows, whose output is not used
	Config transformer;                        // its layers, as LayerRunner runs them; no vocabulary
	bool limited = false;                      // projections have limits (Weights::limits)
	bool line_ends = false;                    // there is a row of the model behind each line of rows
	bool last_line_ends = false;               // also behind the last line
	bool framed = false;                       // there is a row of the model before all others and one behind
	Sight sight = Sight::Before;
	uint32_t table_edge = 0;   // lines and columns that PositionTable::ColumnAndLine has
	uint32_t table_side = 0;   // the same of square tables
	bool layer_scales = false; // outputs of attention and MLP have a factor per channel
	// Patches see those of their window, window x window patches; every so-many-th layer has none, nor the last one
	// where the projector has windows as large as the table. 0: all see all. With inner_merge that layer's.
	uint32_t window = 0, window_period = 0;
	uint32_t queries = 0; // of Step::Queries: rows of the model that each tile becomes
	// Layers whose output also becomes rows, by projectors of their own; the first ones are added behind layer 0 of the
	// model, and so on (DeepStack, arXiv:2406.04334).
	std::vector<uint32_t> deep = {};

	float mlp_limit() const { return transformer.layers.empty() ? kUnlimited : transformer.layers[0].mlp_limit; }
	uint32_t table_class_rows() const { // of the table of positions
		const PositionTable t = projector->table;
		return t == PositionTable::Square || t == PositionTable::SquareThenClass ? class_tokens : 0;
	}
	uint32_t merged_dim() const { // channels of what the projector reads
		return transformer.dim * (projector->merge == Merge::Mean ? 1 : last_merge() * last_merge());
	}
	uint32_t last_merge() const { return merge / inner_merge; } // by Projector::merge
	uint32_t align() const { return patch * merge; }            // edges of tiles are multiples
	uint32_t most_patches() const {                             // of a tile
		const uint32_t side = projector->tiling == Tiling::Free ? 0 : square / patch;
		const uint32_t rounding = projector->tiling == Tiling::Slices ? 2 : 1; // of sizes far from a square
		return std::max(rounding * side * side, most_rows * merge * merge);
	}
	bool windowed(uint32_t layer) const {
		if (inner_merge > 1) return layer == inner_layer;
		const bool last = projector->window_period && layer + 1 == transformer.n_layers;
		return window_period && (layer + 1) % window_period != 0 && !last;
	}
	uint32_t deep_layers() const { return uint32_t(deep.size()); }
	// Rows of the model that a tile becomes; its size is one that tiles have.
	uint32_t rows(uint32_t width, uint32_t height) const {
		if (queries) return queries;
		const uint32_t x = width / align(), y = height / align();
		return x * y + (line_ends ? y - !last_line_ends : 0) + (framed ? 2 : 0);
	}
};
bool has_vision(const Gguf&);
// That of a file. Throws Error{Unsupported} if the file is no vision encoder or kvrun does not run its kind.
const Projector& projector_of(const Gguf&);
// Throws as projector_of(), Error{Format} if the file is damaged or of another model; Invalid for limits that cannot
// be.
VisionConfig read_vision(const Gguf&, const Config& model, const ImageRows& = {});

// A whole image as the encoder reads it.
struct TiledImage {
	struct Tile {
		std::string before; // text, with control tokens
		Image pixels;
	};
	std::vector<Tile> tiles;
	std::string end; // text behind the last one
};
TiledImage tile_image(const VisionConfig&, const Image&);
// A text with numbers in place of names in braces, such as Projector::number.
std::string numbered(std::string text, std::initializer_list<std::pair<std::string_view, uint32_t>> names);
// Identifies an image for an encoder.
uint64_t image_hash(const Image&, uint64_t encoder);

} // namespace kvrun
