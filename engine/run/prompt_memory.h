// Device memory of a prompt block: one row per token, and one layer's own keys and values. If layers share keys and
// values, it has those of one layer of each cache.
#pragma once
#include "engine/core/round.h"
#include "engine/run/arena.h"
#include "engine/run/cache_layers.h"
#include "engine/run/layer_runner.h"
#include "models/config.h"

namespace kvrun {

class PromptMemory {
 public:
	PromptMemory(Backend& be, const Config& cfg, const CacheLayers& layers) : be_(be), cfg_(cfg), layers_(layers) {}
	PromptMemory(const PromptMemory&) = delete; // views look at the buffers

	// Makes room for n tokens, and `more` additional rows of keys and values. The contents are lost when it grows.
	void fit(uint32_t n, uint32_t more) {
		if (n > x.shape[0] || !x) {
			rows_ = {}, x = {}; // in case the allocation fails
			const uint32_t n_rows = align_up(n, 64);
			allocate(be_, rows_, "prompt rows", [&](Arena& a) {
				x = take_streams(a, cfg_, n_rows);
				tokens.ids = a.take(DType::U32, n_rows);
				if (cfg_.layer_input_dim) tokens.inputs = a.take(DType::U32, n_rows);
				for (size_t i = 0; i < cfg_.ropes.size(); ++i)
					rope[i] = a.take(DType::F32, n_rows, cfg_.ropes[i].dim / 2, 2);
				if (cfg_.temperature.scale != 0) rope[kTemperature] = a.take(DType::F32, n_rows);
			});
		}
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
	// This block's own keys and values of one layer of a cache.
	KvRows kv(bool in_window, Window window) const { return {kv_[in_window].k, kv_[in_window].v, 0, window}; }
	// About the bytes of one token.
	static uint64_t row_bytes(const Config& c, const CacheLayers& layers) {
		const auto own = [&](bool window) {
			const KvShape& s = layers.shape(window);
			return s.n_layers ? 2 * s.token_channels() : 0;
		};
		return uint64_t(c.dim) * c.streams.n * 4 + (c.layer_input_dim ? 8 : 4) + uint64_t(rope_width(c)) * 4 +
		       (layers.shares() ? own(false) + own(true) : std::max(own(false), own(true)));
	}
	size_t bytes() const { return rows_.bytes() + own_.bytes(); }
	const Buffer& own() const { return own_; } // the buffer of kv()

	View x;            // (rows, dim) f32; with Config::streams the first of them
	TokenViews tokens; // of the rows
	RopeViews rope;    // of the rows

 private:
	struct Own {
		View k, v; // (n_kv_heads, own rows, channels) f16
	};
	Own lay(Arena& a, bool window, uint32_t n_rows) const {
		const KvShape& s = layers_.shape(window);
		const View k = a.take(DType::F16, s.n_kv_heads, n_rows, s.head_dim);
		return {k, a.take(DType::F16, s.n_kv_heads, n_rows, s.v_dim())};
	}
	Backend& be_;
	const Config& cfg_;
	const CacheLayers& layers_;
	Buffer rows_, own_;
	Own kv_[2]; // of a layer of the main cache; of a layer of the cache of layers with a window
};

} // namespace kvrun
