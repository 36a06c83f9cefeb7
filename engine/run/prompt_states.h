// Hidden states of a prompt for a drafter: the residual stream at some layers, of the prompt's last rows.
#pragma once
#include "engine/run/layer_runner.h"
#include <functional>

namespace kvrun {

struct StateHook {
	std::vector<uint32_t> layers; // in front of which it is read; the number of layers: behind the last one
	uint32_t first = 0;           // row of the prompt from which on it is wanted
	// Gets rows (n, layers * dim) in order and in pieces, from row `first` of the prompt on.
	std::function<void(uint32_t first, std::span<const float> rows)> deliver = {};
};

// Of one block of the prompt at a time.
class PromptStates {
 public:
	PromptStates(LayerRunner& r, StateHook h) : runner_(r), hook_(std::move(h)), read_(hook_.layers.size()) {}
	uint32_t last_layer() const;
	// Rows first .. first + n - 1 of the prompt are next.
	void begin_block(uint32_t first, uint32_t n);
	// Rows x (n, dim), from row `first` of the prompt on, are about to enter layer l: enqueues reading them if wanted.
	void enter(uint32_t l, const View& x, uint32_t first);
	// After all layers, repeatedly: enqueues reading up to `most` rows of x (block, dim), the output. Returns how many
	// rows arrived() will hand on; 0 after the last ones.
	uint32_t leave(const View& x, uint32_t most);
	bool leaving() const { return leaving_ != 0; }
	void arrived(); // after the wait that follows leave()

 private:
	bool is_output(size_t i) const { return hook_.layers[i] == runner_.config().n_layers; }

	LayerRunner& runner_;
	StateHook hook_;
	uint32_t first_ = 0, n_ = 0;           // wanted rows of the block: the first one's row of the prompt, and how many
	uint32_t in_block_ = 0;                // the first one's row of the block
	uint32_t handed_ = 0, leaving_ = 0;    // rows that were handed on, and those of the next piece
	std::vector<std::vector<float>> read_; // by layer: (wanted rows, dim); of the output (rows of a piece, dim)
	std::vector<float> joined_;            // a piece
};

} // namespace kvrun
