// The rows of images and sounds in a prompt: where they are, and where a prompt may be cut.
#pragma once
#include "engine/run/image_store.h"
#include <algorithm>
#include <functional>
#include <optional>

namespace kvrun {

class PromptImages {
 public:
	// store: null if the model reads no images. Throws Error{NotFound} as ImageStore::of() does; Invalid if rows that
	// see each other are more than most_rows, which are read together; ubatch_limits: --ubatch-size sets most_rows.
	PromptImages(ImageStore* store, std::span<const uint32_t> tokens, uint32_t most_rows, bool ubatch_limits);

	double work_left() const; // of the encoders
	// Takes the next tile through a layer of its encoder, and returns the work it took; 0 if all tiles have their rows.
	double encode_next();
	// Whether rows of an image see each other in any layer.
	bool together() const {
		return std::ranges::any_of(runs_, [](const Run& r) { return together(r); });
	}
	// Row i of x (n, dim) f32 is token first + i of the prompt: writes the rows of images.
	void write(Backend&, const View& x, uint32_t first, uint32_t n) const;
	// Calls write() for any x; empty if the prompt has no images. The backend and this must outlive it.
	std::function<void(const View& x)> writer(Backend&, uint32_t first, uint32_t n) const;
	// Behind layer l of the model: adds to rows of images what the encoder has for it, if anything. x, first, n as in
	// write(); room: (n, dim) f32 whose content is lost.
	void add_deep(Backend&, uint32_t l, const View& x, const View& room, uint32_t first, uint32_t n) const;
	// Where a part that begins at token `from` and is to end at `end` ends instead, so that it cuts no rows that see
	// each other: before them, or behind them if it begins with them.
	uint32_t whole(uint32_t from, uint32_t end) const;
	// The part of [from, end) that begins at `from`: rows that see each other (`together`), or the tokens before such,
	// in a layer with a window or without.
	struct Part {
		uint32_t end;
		bool together;
	};
	Part part(uint32_t from, uint32_t end, bool windowed) const;

 private:
	struct Run { // consecutive rows of one image
		uint32_t begin, end;
		const StoredImage* image;
		uint32_t row; // of the image
	};
	static bool together(const Run& r) { return r.image->sight != Sight::Before; }
	const Run* run_behind(uint32_t token) const; // the first that ends behind it; null: none
	void each_run(const View& x, uint32_t first, uint32_t n, auto values_of, auto f) const;

	ImageStore* store_;
	std::vector<std::shared_ptr<StoredImage>> images_;
	std::unique_ptr<EncoderRun> tile_;     // that is being encoded; null: none
	const StoredImage* tile_of_ = nullptr; // its image
	uint32_t tile_number_ = 0;             // in the image
	std::vector<Run> runs_;                // in order
	uint32_t deep_layers_ = 0;
};

} // namespace kvrun
