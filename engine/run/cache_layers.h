// Which cache holds the tokens of a layer: layers that attend to all tokens share one, layers with a sliding window
// share another. A model whose layers are all of one kind has one cache.
#pragma once
#include "backends/op_state.h"
#include "engine/kv_device/index.h"
#include "engine/kv_device/states.h"
#include "engine/kv_host/plan.h"
#include "models/config.h"
#include <optional>

namespace kvrun {

struct BlockCache {  // of entries of blocks of one size (Layer::blocks)
	uint32_t tokens; // of a block
	bool chosen;     // Blocks::chosen
	KvShape shape;   // its layers are those of the model that have such blocks
	uint32_t first;  // layer of the pool that has the pages of its first one
};

class CacheLayers {
 public:
	explicit CacheLayers(const Config& c) {
		uint32_t windows = 0;
		for (const Layer& l : c.layers)
			if (l.window) window_ = l.window, ++windows;
		for (const Layer& l : c.layers) states_.first += attends(l);
		const bool both = windows && windows < states_.first;
		for (uint32_t l = 0; l < c.n_layers; ++l) {
			const Layer& layer = c.layers[l];
			state_numbers_.push_back(states_.n_layers());
			if (layer.recurrent.n_heads) {
				states_.conv_words = layer.recurrent.conv_words();
				states_.words.push_back(states_.conv_words + layer.recurrent.rule_words());
			}
			if (!layer.mixes) {
				places_.push_back({false, 0});
				last_readers_.push_back(l);
				continue;
			}
			if (layer.kv_layer != l) {
				places_.push_back(places_[layer.kv_layer]);
				last_readers_.push_back(l);
				last_readers_[layer.kv_layer] = l;
				shares_ = true;
				continue;
			}
			if (!attends(layer)) { // its state needs all rows, as keys and values do
				places_.push_back({false, 0});
				last_readers_.push_back(l);
				last_own_ = l;
				continue;
			}
			const bool window = both && bool(layer.window);
			Kind& kind = kinds_[window];
			places_.push_back({window, kind.shape.n_layers});
			kind = {{kind.shape.n_layers + 1, layer.n_kv_heads, layer.head_dim, layer.latent.rope_dim}, layer.n_heads};
			last_readers_.push_back(l);
			last_own_ = l;
		}
		if (c.ngrams.longest) {
			ngram_layer_ = c.ngrams.layer, ngram_state_ = states_.n_layers();
			states_.words.push_back((c.ngrams.span() - 1) * c.streams.n * c.dim);
		}
		for (uint32_t l = 0; l < c.n_layers; ++l) {
			const bool own = has_indexer(c, l);
			index_numbers_.push_back(c.layers[l].indexed && !own ? index_numbers_[c.layers[l].index_layer]
			                                                     : index_.n_layers);
			index_.n_layers += own;
			shares_index_ |= c.layers[l].indexed && !own;
		}
		if (index_.n_layers) index_.dim = c.indexer.dim, index_.block = c.indexer.block, index_.most = c.indexer.most;
		if (c.indexer.pool) {
			index_.pool = c.indexer.pool, index_.local = c.indexer.local, index_.heads = c.indexer.n_heads;
			while (!c.layers[index_.from].indexed) ++index_.from; // all layers attend, and have places in their order
		}
		first_index_state_ = states_.n_layers();
		index_.of_entries = c.indexer.of_entries;
		if (index_.block > 1)
			states_.words.resize(first_index_state_ + index_.n_layers,
			                     index_.of_entries ? op::PoolBlocks::state_words(index_.dim, true)
			                                       : (index_.block - 1) * index_.dim * (c.indexer.gated ? 2 : 1));
		for (const uint32_t tokens : block_sizes(c)) blocks_.push_back({tokens, false, {}, 0});
		for (uint32_t l = 0; l < c.n_layers; ++l) {
			const Layer& layer = c.layers[l];
			block_places_.push_back({0, 0, states_.n_layers()});
			if (!layer.blocks.tokens) continue;
			BlockPlace& at = block_places_.back();
			while (blocks_[at.cache].tokens != layer.blocks.tokens) ++at.cache;
			BlockCache& b = blocks_[at.cache];
			at.index = b.shape.n_layers, b.chosen = layer.blocks.chosen;
			b.shape = {at.index + 1, 1, layer.head_dim, layer.latent.rope_dim};
			states_.words.push_back(op::PoolBlocks::state_words(layer.head_dim, layer.blocks.chosen));
		}
		index_.first = states_.first + states_.n_layers();
		n_layers_ = index_.first + index_.n_layers;
		for (BlockCache& b : blocks_) b.first = n_layers_, n_layers_ += b.shape.n_layers;
		if (!states_.first) kinds_[0] = {{0, 1, 8}, 1}; // a cache that only counts tokens
	}
	struct Place {
		bool window;    // true: in the cache of layers with a window; false: in the main one
		uint32_t index; // layer of that cache; unused for layers that do not attend
	};
	const Place& operator[](uint32_t l) const { return places_[l]; } // place of the layer whose keys and values l uses
	// Layer of KvPool for a place of a layer that is not recurrent: the main cache's layers, then those with a window,
	// then states.
	uint32_t pool_layer(const Place& p) const { return p.index + (p.window ? main_shape().n_layers : 0); }
	// By layer of KvPool: the layer of the model whose tokens or state lie there.
	std::vector<uint32_t> model_layers(const Config& c) const {
		std::vector<uint32_t> r(n_layers_); // a layer may have several
		for (uint32_t l = 0; l < c.n_layers; ++l) {
			if (c.layers[l].recurrent.n_heads) r[states_.first + state(l)] = l;
			if (has_own_kv(c, l)) r[pool_layer(places_[l])] = l;
			if (has_indexer(c, l)) r[index_.first + index(l)] = l;
			if (has_indexer(c, l) && index_.block > 1) r[states_.first + index_state(l)] = l;
			if (!c.layers[l].blocks.tokens) continue;
			const BlockPlace& at = block_places_[l];
			r[states_.first + at.state] = r[blocks_[at.cache].first + at.index] = l;
		}
		if (ngram_state_) r[states_.first + *ngram_state_] = ngram_layer_;
		return r;
	}
	Window window() const { return window_; }                        // of layers that have one
	bool both_kinds() const { return kinds_[1].shape.n_layers > 0; } // there is also a cache for layers with a window
	// Shape of a cache; its layers have equal sizes.
	const KvShape& shape(bool window) const { return kinds_[window].shape; }
	uint32_t n_heads(bool window) const { return kinds_[window].n_heads; }
	const KvShape& main_shape() const { return shape(false); }
	const KvShape& window_shape() const { return shape(true); }
	const StateShape& states() const { return states_; }           // of recurrent layers, after all others in the pool
	uint32_t state(uint32_t l) const { return state_numbers_[l]; } // number of layer l among the recurrent ones
	// Number of the state of the layer with Config::ngrams, behind those of recurrent layers: of its convolution.
	std::optional<uint32_t> ngram_state() const { return ngram_state_; }
	const IndexShape& index_shape() const { return index_; } // after states in the pool
	// Number of the indexer that chooses for layer l, which has Layer::indexed.
	uint32_t index(uint32_t l) const { return index_numbers_[l]; }
	bool shares_index() const { return shares_index_; } // some layers attend to what an earlier one has chosen
	// Number of the state of layer l with the latest keys of tokens, which the mean of a block may need: of a short
	// convolution. Of layers with an indexer whose blocks have several tokens.
	uint32_t index_state(uint32_t l) const { return first_index_state_ + index(l); }
	// Caches of entries of blocks, that of which an indexer chooses first; behind all others in the pool.
	const std::vector<BlockCache>& blocks() const { return blocks_; }
	struct BlockPlace {
		uint32_t cache, index; // number of the cache, and of the layer there
		uint32_t state;        // number of the state of what its entries are made of
	};
	const BlockPlace& block(uint32_t l) const { return block_places_[l]; } // of a layer with Layer::blocks
	// The shape that a policy applies to; so many tokens are one of its.
	const KvShape& policy_shape() const { return blocks_.empty() ? main_shape() : blocks_[0].shape; }
	uint32_t policy_block() const { return blocks_.empty() ? 1 : blocks_[0].tokens; }
	bool shares() const { return shares_; }         // some layers have no keys and values of their own
	uint32_t last_own() const { return last_own_; } // the last layer that has its own
	// The last layer that attends to the keys and values of layer l, which has its own.
	uint32_t last_reader(uint32_t l) const { return last_readers_[l]; }

 private:
	struct Kind {
		KvShape shape = {};
		uint32_t n_heads = 0; // query heads
	};
	StateShape states_;
	Kind kinds_[2];             // the main cache, that of layers with a window
	std::vector<Place> places_; // by layer
	std::vector<uint32_t> last_readers_, state_numbers_;
	Window window_;
	uint32_t last_own_ = 0, ngram_layer_ = 0;
	std::optional<uint32_t> ngram_state_;
	IndexShape index_;
	std::vector<uint32_t> index_numbers_; // by layer
	std::vector<BlockCache> blocks_;
	std::vector<BlockPlace> block_places_; // by layer
	uint32_t n_layers_ = 0;                // of the pool
	uint32_t first_index_state_ = 0;
	bool shares_ = false, shares_index_ = false;
};

} // namespace kvrun
