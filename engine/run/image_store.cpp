// Images and sounds that prompts refer to.
#include "engine/run/image_store.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr uint32_t kMostEdge = 1 << 15;   // pixels
constexpr uint32_t kIds = kAudioMark - 1; // of images, and of sounds

[[noreturn]] void gone(const char* what) {
	fail(Code::NotFound, "{} is of an image or a sound that is no longer held; give it again", what);
}

// Whether row i of n has kLineMark, where lines have so many rows of patches.
bool marked(const VisionConfig& c, uint32_t i, uint32_t n, uint32_t line) {
	if (!c.projector->lines) return false;
	return c.framed ? i % (line + 1) == 0 || i + 1 == n : i % line == 0;
}

// A tile of an image on its way through the encoder.
class TileRun : public EncoderRun {
 public:
	TileRun(ImageEncoder& e, const Image& tile) : encoder_(e), tile_(e.begin(tile)) {}
	bool done() const override { return tile_->done(); }
	void step() override { tile_->step(); }
	TileRows finish() override { return encoder_.finish(*tile_); }

 private:
	ImageEncoder& encoder_;
	std::unique_ptr<TileEncoder> tile_;
};

} // namespace

uint64_t encoding_bytes(const EncoderConfigs& e) {
	return std::max(e.vision ? TileEncoder::bytes(*e.vision, e.vision->most_patches()) : 0,
	                e.audio ? AudioEncoder::bytes(*e.audio) : 0);
}

size_t StoredImage::bytes() const {
	size_t n = rows.capacity() * sizeof(float);
	for (const std::vector<float>& d : deep) n += d.capacity() * sizeof(float);
	for (const EncoderInput& t : tiles) {
		const Image* image = std::get_if<Image>(&t);
		n += image ? image->rgb.size() : std::get<AudioPiece>(t).bytes();
	}
	return n;
}

void ImageStore::check_size(uint32_t width, uint32_t height) {
	if (width == 0 || height == 0 || width > kMostEdge || height > kMostEdge)
		fail(Code::Invalid, "an image of {} x {} pixels; edges may have 1 to {}", width, height, kMostEdge);
}

void ImageStore::append(StoredImage& to, const std::string& text) const {
	const std::vector<uint32_t> more = encoded(text);
	to.tokens.insert(to.tokens.end(), more.begin(), more.end());
}

uint64_t ImageStore::add(const Image& image) {
	check_size(image.width, image.height);
	const uint64_t id = image_hash(image, fingerprint_);
	if (find(id)) return id;
	const VisionConfig& c = encoder_->config();
	TiledImage tiled = tile_image(c, image);
	auto stored = std::make_shared<StoredImage>();
	stored->id = id, stored->sight = c.sight;
	for (const TiledImage::Tile& t : tiled.tiles) stored->n_rows += c.rows(t.pixels.width, t.pixels.height);
	std::lock_guard lock(mutex_);
	if (find_held(id)) return id; // another thread has added it meanwhile
	stored->first = free_ids(kFirstImageRow, id, stored->n_rows);
	uint32_t next = stored->first;
	for (TiledImage::Tile& t : tiled.tiles) {
		append(*stored, t.before);
		const uint32_t n = c.rows(t.pixels.width, t.pixels.height), line = t.pixels.width / c.align();
		for (uint32_t i = 0; i < n; ++i, ++next)
			stored->tokens.push_back(marked(c, i, n, line) ? next | kLineMark : next);
		stored->tiles.push_back(std::move(t.pixels));
	}
	append(*stored, tiled.end);
	images_[stored->first] = {stored, ++now_};
	forget_oldest();
	return id;
}

uint64_t ImageStore::add(std::span<const float> samples) {
	const uint64_t id = audio_hash(samples, fingerprint_);
	if (find(id)) return id;
	const AudioConfig& c = audio_->config();
	std::vector<AudioPiece> pieces = cut_audio(c, samples);
	auto stored = std::make_shared<StoredImage>();
	stored->id = id;
	for (AudioPiece& p : pieces) {
		stored->n_rows += c.rows(p.frames);
		stored->tiles.push_back(std::move(p));
	}
	std::lock_guard lock(mutex_);
	if (find_held(id)) return id; // another thread has added it meanwhile
	stored->first = free_ids(kFirstImageRow | kAudioMark, id, stored->n_rows);
	append(*stored, c.projector->begin);
	for (uint32_t i = 0; i < stored->n_rows; ++i) stored->tokens.push_back(stored->first + i);
	append(*stored, c.projector->end);
	images_[stored->first] = {stored, ++now_};
	forget_oldest();
	return id;
}

std::shared_ptr<StoredImage> ImageStore::find_held(uint64_t id) {
	for (auto& [first, e] : images_)
		if (e.image->id == id) {
			e.used = ++now_;
			return e.image;
		}
	return nullptr;
}
std::shared_ptr<StoredImage> ImageStore::find(uint64_t id) {
	std::lock_guard lock(mutex_);
	return find_held(id);
}

// The first ids behind `begin` from this place on that nothing else has.
uint32_t ImageStore::free_ids(uint32_t begin, uint64_t place, uint32_t n) const {
	for (;;) {
		place %= kIds - n;
		const uint32_t first = begin + uint32_t(place);
		const auto next = images_.lower_bound(first);
		const bool hits_next = next != images_.end() && next->first - first < n;
		const bool hits_last =
		    next != images_.begin() && first - std::prev(next)->first < std::prev(next)->second.image->n_rows;
		if (!hits_next && !hits_last) return first;
		place += 0x9e3779b9u;
	}
}

// Prompts hold their images, whatever is forgotten here. The newest stays.
void ImageStore::forget_oldest() {
	for (;;) {
		size_t bytes = 0;
		auto oldest = images_.begin();
		for (auto i = images_.begin(); i != images_.end(); ++i) {
			bytes += i->second.image->bytes();
			if (i->second.used < oldest->second.used) oldest = i;
		}
		if (bytes <= kMostBytes || images_.size() <= 1) return;
		images_.erase(oldest);
	}
}

std::vector<uint32_t> ImageStore::encoded(const std::string& text) const {
	return tokenizer_.encode(text, {.bos = false, .special = true});
}

std::vector<uint32_t> ImageStore::tokens(uint64_t id, uint32_t number) {
	const auto image = find(id);
	if (!image) gone("the id");
	std::vector<uint32_t> all;
	if (!is_audio_row(image->first)) all = encoded(numbered(encoder_->config().projector->number, {{"image", number}}));
	all.insert(all.end(), image->tokens.begin(), image->tokens.end());
	return all;
}

ImageStore::Rows ImageStore::rows(uint64_t id) {
	const auto image = find(id);
	if (!image) gone("the id");
	return {image->first, image->n_rows};
}

std::vector<std::shared_ptr<StoredImage>> ImageStore::of(std::span<const uint32_t> tokens) {
	std::vector<std::shared_ptr<StoredImage>> out;
	std::lock_guard lock(mutex_);
	for (const uint32_t token : tokens) {
		if (!is_image_row(token)) continue;
		const uint32_t t = image_row(token);
		if (!out.empty() && t >= out.back()->first && t - out.back()->first < out.back()->n_rows) continue;
		auto i = images_.upper_bound(t);
		if (i == images_.begin()) gone("a token");
		Entry& e = std::prev(i)->second;
		if (t - e.image->first >= e.image->n_rows) gone("a token");
		e.used = ++now_;
		if (std::ranges::find(out, e.image) == out.end()) out.push_back(e.image);
	}
	return out;
}

size_t ImageStore::weight_bytes() const {
	return (encoder_ ? encoder_->weight_bytes() : 0) + (audio_ ? audio_->weight_bytes() : 0);
}

double ImageStore::work(const EncoderInput& input) const {
	const Image* image = std::get_if<Image>(&input);
	return image ? encoder_->work(*image) : audio_->work(std::get<AudioPiece>(input));
}

double ImageStore::layer_work(const EncoderInput& input) const {
	const Config& c =
	    std::holds_alternative<Image>(input) ? encoder_->config().transformer : audio_->config().transformer;
	return work(input) / std::max(c.n_layers, 1u);
}

double ImageStore::work_left(const StoredImage& image) const {
	double all = 0;
	for (size_t i = image.encoded; i < image.tiles.size(); ++i) all += work(image.tiles[i]);
	return all;
}

std::unique_ptr<EncoderRun> ImageStore::begin(const EncoderInput& input) {
	if (const Image* image = std::get_if<Image>(&input)) return std::make_unique<TileRun>(*encoder_, *image);
	return audio_->begin(std::get<AudioPiece>(input));
}

void ImageStore::add_rows(StoredImage& image, TileRows add) {
	if (!is_audio_row(image.first)) // whose models take rows as they are
		for (float& x : add.rows) x *= scale_;
	std::lock_guard lock(mutex_); // bytes() reads both
	image.rows.insert(image.rows.end(), add.rows.begin(), add.rows.end());
	image.deep.resize(add.deep.size());
	for (size_t l = 0; l < add.deep.size(); ++l)
		image.deep[l].insert(image.deep[l].end(), add.deep[l].begin(), add.deep[l].end());
	image.tiles[image.encoded] = {};
	++image.encoded;
}

} // namespace kvrun
