// Which cache holds the tokens of a layer: layers that attend to all tokens share one, those with a sliding window
// another. A model whose layers are all of one kind has one cache.
#pragma once
#include "engine/kv_host/plan.h"
#include "models/config.h"

namespace kvrun {

class CacheLayers {
 public:
	explicit CacheLayers(const Config& c) : shape_{0, c.n_kv_heads, c.head_dim} {
		for (const Layer& l : c.layers)
			if (l.window) window_ = l.window, ++n_window_;
		const bool both = n_window_ && n_window_ < c.n_layers;
		uint32_t next[2] = {};
		for (const Layer& l : c.layers) {
			const bool window = both && l.window;
			places_.push_back({window, next[window]++});
		}
		n_main_ = next[0], n_window_ = next[1];
	}
	struct Place {
		bool window;    // in the cache of layers with a window, else in the main one
		uint32_t index; // layer there
	};
	const Place& operator[](uint32_t l) const { return places_[l]; }
	uint32_t window() const { return window_; }       // of layers that have one; 0: none has
	bool both_kinds() const { return n_window_ > 0; } // there is a cache for layers with a window
	KvShape main_shape() const { return shape_of(n_main_); }
	KvShape window_shape() const { return shape_of(n_window_); }

 private:
	KvShape shape_of(uint32_t n) const { return {n, shape_.n_kv_heads, shape_.head_dim}; }
	KvShape shape_;
	std::vector<Place> places_; // by layer
	uint32_t window_ = 0, n_main_ = 0, n_window_ = 0;
};

} // namespace kvrun
