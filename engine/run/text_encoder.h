// Makes a vector of each text with a model whose tokens see each other (Config::encodes).
#pragma once
#include "engine/run/row_encoder.h"
#include "models/weights.h"

namespace kvrun {

struct EncoderText {
	std::span<const uint32_t> tokens;
	uint32_t second = UINT32_MAX; // tokens from here on are the second part of a pair
};

class TextEncoder {
 public:
	// Texts go through the layers together as long as they have no more tokens than this, or one alone.
	static constexpr uint32_t kTokens = 4096;

	// All must outlive it.
	TextEncoder(Backend&, const Config&, const Weights&, const Loras*);

	// Pooled states behind the final norm: (texts, dim). go_on is called before each layer with the share of the work
	// that is done, while the device has no work of the texts; if it returns false, the result is empty. Throws
	// Error{Context} for a text that is longer than the trained context, Invalid for one without tokens or with a token
	// outside the vocabulary, OutOfMemory, and Device if a result is not finite.
	std::vector<float> encode(std::span<const EncoderText>, Pooling, const std::function<bool(double)>& go_on = {});
	// States of all tokens behind the final norm: (tokens of all texts, dim), in order. The same errors.
	std::vector<float> states(std::span<const EncoderText>);

 private:
	void check(std::span<const EncoderText>) const;
	// Runs texts through all layers, of which the rows are then states behind the final norm. False: stopped.
	bool run(RowEncoder&, std::span<const EncoderText>, const std::function<bool(uint32_t layer)>& go_on);
	void embed(RowEncoder&, std::span<const EncoderText>);
	Backend& be_;
	const Config& config_;
	const Weights& weights_;
	const Loras* loras_;
};

// What follows the pooled states of texts (Config::text_head), of any model.
class PooledHead {
 public:
	PooledHead(Backend& be, const Config& c, const Weights& w) : be_(be), config_(c), weights_(w.text) {}
	// pooled: (n, dim). Returns (n, vector_dim()), or (n, labels) of a model that has labels.
	std::vector<float> vectors(std::vector<float> pooled) const;
	std::vector<float> scores(std::vector<float> pooled) const;

 private:
	using NextRoom = std::function<View(uint32_t columns)>; // (n, columns) for a result, while the one before is read
	// What apply() makes of the values (n, dim), on the device.
	std::vector<float> through(std::vector<float> values, uint32_t widest,
	                           const std::function<View(View from, const NextRoom&)>& apply) const;
	Backend& be_;
	const Config& config_;
	const TextWeights& weights_;
};

} // namespace kvrun
