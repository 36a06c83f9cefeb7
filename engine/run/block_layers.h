// DFlash and DSpark layers (models/dflash.h): guesses of a block of tokens at once.
#pragma once
#include "engine/run/draft_layers.h"

namespace kvrun {

class BlockLayers final : public DraftLayers {
 public:
	BlockLayers(Backend&, const Gguf&, Config, const Weights& model, const LoadProgress& = {});
	static uint64_t activation_bytes(const Config&); // what prepare() allocates, caches apart

	void read(std::span<const DraftRows>) override;
	void guess(std::span<const DraftGuess>) override;

 private:
	struct Steps { // the cache side of a step, of both kinds of layers
		std::optional<KvStep> all, window;
		KvStep& of(const CacheLayers::Place& p) { return p.window ? *window : *all; }
		void end();
	};
	struct Row { // the i-th of a text's rows
		DraftCache* cache;
		uint32_t i;
	};
	void lay(Arena&) override;
	void fill() override;
	void begin(Steps&, std::span<const Row>, bool causal);
	void guess_together(std::span<const DraftGuess>, uint32_t n);
	void chain(std::span<const DraftGuess>, uint32_t n);

	View fused_, before_; // (rows, state_width()), (rows, rank) f32
};

} // namespace kvrun
