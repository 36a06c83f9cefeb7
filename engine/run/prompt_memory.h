// Device memory of a prompt block: one row per token, and one layer's own keys and values. If layers share keys and
// values, it has those of one layer of each cache; if devices work on a block together, those of all layers.
#pragma once
#include "engine/core/round.h"
#include "engine/kv_device/prefill.h"
#include "engine/run/arena.h"
#include "engine/run/cache_layers.h"
#include "engine/run/expanded.h"
#include "engine/run/layer_runner.h"
#include "models/config.h"

namespace kvrun {

class PromptMemory {
 public:
	PromptMemory(Backend& be, const Config& cfg, const CacheLayers& layers) : be_(be), cfg_(cfg), layers_(layers) {}
	PromptMemory(const PromptMemory&) = delete; // views look at the buffers

	// Makes room for n tokens, and `more` additional rows of keys and values. The contents are lost when it grows.
	void fit(uint32_t n, uint32_t more) {
		fit_rows(n);
		drop_layers();
		if (n + more > kv_[0].k.shape[1] || !kv_[0].k) {
			own_ = {}, kv_[0] = {};
			const uint32_t n_rows = align_up(n + more, 64);
			allocate(be_, own_, "prompt keys and values", [&](Arena& a) {
				Arena again = a; // layers use the same memory in turn, unless some are read again
				kv_[0] = lay(a, false, n_rows);
				if (!layers_.both_kinds()) return;
				kv_[1] = lay(layers_.shares() ? a : again, true, n_rows);
				if (again.bytes() > a.bytes()) a = again;
			});
		}
	}
	// The same with memory for each layer, by_layer(), on the layer's device. Returns false where `most_bytes` do not
	// hold all, or the device does not.
	bool fit_layers(uint32_t n, uint32_t more, size_t most_bytes) {
		const uint32_t n_rows = align_up(n + more, 64);
		size_t bytes = 0;
		for (const bool window : {false, true}) bytes += layers_.shape(window).n_layers * own_bytes(window, n_rows);
		if (bytes > most_bytes) return false;
		fit_rows(n);
		if (!all_kv_[0].empty() && n_rows <= all_kv_[0][0].k.shape[1]) return true;
		own_ = {}, kv_[0] = {};
		drop_layers();
		try {
			for (uint32_t l = 0; l < cfg_.n_layers; ++l) {
				if (!has_own_kv(cfg_, l)) continue;
				const bool window = layers_[l].window;
				all_own_.push_back(be_.alloc_part(be_.part_of(l), own_bytes(window, n_rows), Mem::Device,
				                                  "prompt keys and values of a layer"));
				all_kv_[window].emplace_back(); // its view is laid below, when no buffer moves any more
			}
		} catch (const Error& e) {
			if (e.code != Code::OutOfMemory) throw;
			drop_layers();
			return false;
		}
		for (uint32_t l = 0, i = 0; l < cfg_.n_layers; ++l) {
			if (!has_own_kv(cfg_, l)) continue;
			Arena a(&all_own_[i++]);
			all_kv_[layers_[l].window][layers_[l].index] = lay(a, layers_[l].window, n_rows);
		}
		return true;
	}
	// Makes room for keys and values of all heads of n tokens (expanded form of latent attention); returns false where
	// the device does not hold them.
	bool fit_expanded(uint32_t n) {
		if (expanded_.k && n <= expanded_.k.shape[1]) return true;
		heads_ = {}, expanded_ = {};
		const Layer* layer = latent_layer(cfg_);
		try {
			allocate(be_, heads_, "prompt keys and values of heads",
			         [&](Arena& a) { expanded_.lay(a, layer->latent, layer->n_heads, align_up(n, 64)); });
		} catch (const Error& e) {
			if (e.code != Code::OutOfMemory) throw;
			expanded_ = {};
		}
		return bool(expanded_.k);
	}
	const ExpandedMemory& expanded() const { return expanded_; }
	// Makes room for entries of blocks of n tokens, of models with Layer::blocks, and `more` additional rows. As many
	// rows as tokens are behind them (KvPrefill::attend_entries()), so all begin as zeros.
	void fit_entries(uint32_t n, uint32_t more) {
		uint32_t least = n;
		for (const BlockCache& b : layers_.blocks()) least = std::min(least, b.tokens);
		const uint32_t n_rows = align_up(n + n / least + 1 + more, 64);
		if (entries_.k && entries_.k.shape[1] >= n_rows) return;
		entry_memory_ = {}, entries_ = {};
		allocate(be_, entry_memory_, "prompt entries of blocks",
		         [&](Arena& a) { entries_ = lay(a, layers_.blocks()[0].shape, n_rows); });
		const std::vector<std::byte> zeros(std::min(entry_memory_.bytes(), size_t(1) << 20));
		for (size_t at = 0; at < entry_memory_.bytes(); at += zeros.size()) {
			be_.write(entry_memory_, at, std::span(zeros).first(std::min(zeros.size(), entry_memory_.bytes() - at)));
			be_.submit();
			be_.wait(); // no more staging memory
		}
	}
	KvRows entries() const { return {entries_.k, entries_.v}; } // of one layer; layers use the same memory in turn
	// Makes room for the bits of tokens that n rows attend to, (n, words) u32: choices(). Of models whose layers share
	// an indexer.
	void fit_choices(uint32_t n, uint32_t words) {
		const size_t bytes = size_t(n) * words * 4;
		if (choices_.bytes() < bytes) choices_ = {}, choices_ = be_.alloc(bytes, Mem::Device, "choices of a prompt");
		choice_words_ = words;
	}
	// Rows of a block whose bits, of so many words, have room: a block of a long text has fewer rows.
	static uint32_t rows_that_choose(uint32_t words) { return uint32_t(kChoiceBytes / 4 / words); }
	static constexpr size_t kChoiceBytes = 64 << 20;
	View choices(uint32_t first, uint32_t n) const {
		return view(choices_, size_t(first) * choice_words_ * 4, DType::U32, n, choice_words_);
	}
	// This block's own keys and values of one layer of a cache; of its first layer after fit_layers().
	KvRows kv(bool in_window, Window window) const {
		const KvMemory& own = all_kv_[in_window].empty() ? kv_[in_window] : all_kv_[in_window][0];
		return {own.k, own.v, 0, window};
	}
	// Those of each layer of a cache after fit_layers(), else none.
	const std::vector<KvMemory>& by_layer(bool in_window) const { return all_kv_[in_window]; }
	// About the bytes of one token.
	static uint64_t row_bytes(const Config& c, const CacheLayers& layers) {
		const auto own = [&](bool window) {
			const KvShape& s = layers.shape(window);
			return s.n_layers ? 2 * s.token_channels() : 0;
		};
		return uint64_t(c.dim) * rows_per_token(c) * 4 + (c.layer_input_dim || c.text_input.positions ? 8 : 4) +
		       uint64_t(rope_width(c)) * 4 + ExpandedMemory::row_bytes(c) +
		       (layers.shares() ? own(false) + own(true) : std::max(own(false), own(true))) +
		       (layers.blocks().empty() ? 0 : 3 * layers.policy_shape().token_channels());
	}
	size_t bytes() const {
		size_t n = rows_.bytes() + own_.bytes() + heads_.bytes() + choices_.bytes() + entry_memory_.bytes();
		for (const Buffer& b : all_own_) n += b.bytes();
		return n;
	}
	const Buffer& own() const { return own_; } // the buffer of kv()

	View x;            // (rows, dim) f32; with Config::streams the first of them
	TokenViews tokens; // of the rows
	RopeViews rope;    // of the rows

 private:
	// Rows of the residual stream, tokens and rotations.
	void fit_rows(uint32_t n) {
		if (n > x.shape[0] || !x) {
			rows_ = {}, x = {}; // in case the allocation fails
			const uint32_t n_rows = align_up(n, 64);
			allocate(be_, rows_, "prompt rows", [&](Arena& a) {
				x = take_streams(a, cfg_, n_rows);
				tokens.ids = a.take(DType::U32, n_rows);
				if (cfg_.layer_input_dim) tokens.inputs = a.take(DType::U32, n_rows);
				if (cfg_.text_input.positions) tokens.places = a.take(DType::U32, n_rows);
				for (size_t i = 0; i < cfg_.ropes.size(); ++i)
					rope[i] = a.take(DType::F32, n_rows, cfg_.ropes[i].dim / 2, 2);
				if (cfg_.temperature.scale != 0) rope[kTemperature] = a.take(DType::F32, n_rows);
				for (const size_t i : block_start_tables(cfg_))
					rope[i] = a.take(DType::F32, n_rows, cfg_.ropes[0].dim / 2, 2);
			});
		}
	}
	void drop_layers() { all_own_.clear(), all_kv_[0].clear(), all_kv_[1].clear(); }
	size_t own_bytes(bool window, uint32_t n_rows) const {
		if (!layers_.shape(window).n_layers) return 0;
		Arena dry(nullptr);
		lay(dry, window, n_rows);
		return dry.bytes();
	}
	KvMemory lay(Arena& a, bool window, uint32_t n_rows) const { return lay(a, layers_.shape(window), n_rows); }
	static KvMemory lay(Arena& a, const KvShape& s, uint32_t n_rows) {
		const View k = a.take(DType::F16, s.n_kv_heads, n_rows, s.head_dim);
		return {k, a.take(DType::F16, s.n_kv_heads, n_rows, s.v_dim())};
	}
	Backend& be_;
	const Config& cfg_;
	const CacheLayers& layers_;
	Buffer rows_, own_, heads_, choices_, entry_memory_;
	KvMemory entries_;
	uint32_t choice_words_ = 0; // of a row
	ExpandedMemory expanded_;
	KvMemory kv_[2];                  // of a layer of the main cache; of a layer of the cache of layers with a window
	std::vector<Buffer> all_own_;     // by layer
	std::vector<KvMemory> all_kv_[2]; // by layer of each of both caches
};

} // namespace kvrun
