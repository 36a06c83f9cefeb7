// Images and sounds that prompts refer to. Each is tokens of the vocabulary around it, and ids that are no tokens, one
// for each row that its encoder makes of it. The ids depend on the content alone, so equal images in two prompts are a
// common beginning, also of a session that was restored.
#pragma once
#include "engine/run/audio_encoder.h"
#include "engine/run/image_encoder.h"
#include "engine/run/image_rows.h"
#include "models/encoder_file.h"
#include "models/tokenizer.h"
#include <map>
#include <memory>
#include <mutex>
#include <variant>

namespace kvrun {

// Device memory that the largest tile or piece takes while it is encoded.
uint64_t encoding_bytes(const EncoderConfigs&);

using EncoderInput = std::variant<Image, AudioPiece>; // what an encoder takes at once

struct StoredImage { // or sound
	uint64_t id = 0;
	std::vector<uint32_t> tokens;         // all of them but Projector::number
	uint32_t first = 0, n_rows = 0;       // image_row() of its ids: first .. first + n_rows - 1
	std::vector<EncoderInput> tiles;      // emptied once their rows are there
	std::vector<float> rows;              // (n_rows, dim), tile after tile
	std::vector<std::vector<float>> deep; // the same, added behind the model's first layers
	uint32_t encoded = 0;                 // tiles
	Sight sight = Sight::Before;
	size_t bytes() const;
};

class ImageStore {
 public:
	static constexpr size_t kMostBytes = size_t(512) << 20; // of host memory, of images that no prompt uses

	// At least one encoder is not null.
	ImageStore(std::unique_ptr<ImageEncoder> images, std::unique_ptr<AudioEncoder> sounds, const Tokenizer& t,
	           uint64_t fingerprint, float scale)
	    : encoder_(std::move(images)), audio_(std::move(sounds)), tokenizer_(t), fingerprint_(fingerprint),
	      scale_(scale) {}

	// Any thread may call these. Adds an image, unless it is there, and returns its id. Those used longest ago go
	// first where there are too many. Throws Error{Invalid} for an image that no tile can be made of.
	uint64_t add(const Image&);
	// The same of a sound: samples in -1 .. 1 of one channel, kSampleRate in a second. Throws Error{Invalid} if it is
	// too short for a row.
	uint64_t add(std::span<const float> samples);
	static void check_size(uint32_t width, uint32_t height); // throws Error{Invalid}
	// Of an image of add(), the number-th of its prompt from 0. Throws Error{NotFound} if it is no longer there.
	std::vector<uint32_t> tokens(uint64_t id, uint32_t number = 0);
	struct Rows {
		uint32_t first, n; // image_row() of the first id
	};
	Rows rows(uint64_t id); // likewise
	// The images whose rows are among these tokens, each once. Throws Error{NotFound} likewise.
	std::vector<std::shared_ptr<StoredImage>> of(std::span<const uint32_t> tokens);

	bool reads_images() const { return encoder_ != nullptr; }
	bool reads_audio() const { return audio_ != nullptr; }
	ImageEncoder& encoder() { return *encoder_; } // of images
	AudioEncoder& audio() { return *audio_; }
	size_t weight_bytes() const;
	uint32_t deep_layers() const { return encoder_ ? encoder_->config().deep_layers() : 0; }
	double work(const EncoderInput&) const;       // multiplies and adds
	double layer_work(const EncoderInput&) const; // of a layer of the encoder
	// Work of the tiles that have no rows yet.
	double work_left(const StoredImage&) const;
	// During a turn on the device. The input must outlive it.
	std::unique_ptr<EncoderRun> begin(const EncoderInput&);
	// The rows of the next tile, StoredImage::encoded.
	void add_rows(StoredImage&, TileRows);

 private:
	std::shared_ptr<StoredImage> find(uint64_t id); // null: it is not held
	std::vector<uint32_t> encoded(const std::string&) const;
	// With mutex_ held.
	std::shared_ptr<StoredImage> find_held(uint64_t id);
	uint32_t free_ids(uint32_t begin, uint64_t place, uint32_t n) const;
	void append(StoredImage&, const std::string& text) const;
	void forget_oldest();
	std::unique_ptr<ImageEncoder> encoder_;
	std::unique_ptr<AudioEncoder> audio_;
	const Tokenizer& tokenizer_;
	uint64_t fingerprint_;
	float scale_; // factor of rows: Config::embedding_scale
	std::mutex mutex_;
	struct Entry {
		std::shared_ptr<StoredImage> image;
		uint64_t used; // when
	};
	std::map<uint32_t, Entry> images_; // by first id
	uint64_t now_ = 0;
};

} // namespace kvrun
