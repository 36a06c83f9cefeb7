// DFlash and DSpark layers (models/dflash.h): guesses of a block of tokens at once.
#pragma once
#include "engine/run/draft_layers.h"

namespace kvrun {

class BlockLayers final : public DraftLayers {
 public:
	BlockLayers(Backend&, const Gguf&, Config, const Weights& model, const LoadProgress& = {});
	static uint64_t activation_bytes(const Config&); // what prepare() allocates, caches apart

	void read(DraftCache&, const DraftRows&, bool guesses) override;
	void guess(DraftCache&, uint32_t position, uint32_t next, uint32_t most, std::vector<uint32_t>& out) override;

 private:
	struct Steps { // the cache side of a step, of both kinds of layers
		std::optional<KvStep> all, window;
		KvStep& of(const CacheLayers::Place& p) { return p.window ? *window : *all; }
		void end();
	};
	void lay(Arena&) override;
	void fill() override;
	void begin(Steps&, DraftCache&, uint32_t n, bool causal);
	void chain(uint32_t n, uint32_t next, std::vector<uint32_t>& out);

	View fused_, before_; // (rows, state_width()), (1, rank) f32
};

} // namespace kvrun
