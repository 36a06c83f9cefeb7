// Device memory of a prompt block: one row per token, and one layer's own keys and values.
#pragma once
#include "engine/core/round.h"
#include "engine/run/arena.h"
#include "engine/run/layer_runner.h"
#include "models/config.h"

namespace kvrun {

class PromptMemory {
 public:
	PromptMemory(Backend& be, const Config& cfg) : be_(be), cfg_(cfg) {}
	PromptMemory(const PromptMemory&) = delete; // views look at the buffers

	// Room for n tokens, and `more` rows of keys and values beside theirs. Grows; what was there is lost then.
	void fit(uint32_t n, uint32_t more) {
		if (n > x.shape[0] || !x) {
			rows_ = {}, x = {}; // should there be no memory
			const uint32_t n_rows = align_up(n, 64);
			allocate(be_, rows_, "prompt rows", [&](Arena& a) {
				x = a.take(DType::F32, n_rows, cfg_.dim);
				tokens = a.take(DType::U32, n_rows);
				for (size_t i = 0; i < cfg_.ropes.size(); ++i)
					rope[i] = a.take(DType::F32, n_rows, cfg_.ropes[i].dim / 2, 2);
				if (cfg_.temperature.scale != 0) rope[kTemperature] = a.take(DType::F32, n_rows);
			});
		}
		if (n + more > k.shape[1] || !k) {
			own_ = {}, k = {};
			const uint32_t n_rows = align_up(n + more, 64);
			allocate(be_, own_, "prompt keys and values", [&](Arena& a) {
				k = a.take(DType::F16, cfg_.n_kv_heads, n_rows, cfg_.head_dim);
				v = a.take(DType::F16, cfg_.n_kv_heads, n_rows, cfg_.head_dim);
			});
		}
	}
	size_t bytes() const { return rows_.bytes() + own_.bytes(); }
	const Buffer& own() const { return own_; } // what k and v lie in

	View x, tokens; // (rows, dim) f32, (rows) u32
	RopeViews rope; // of the rows
	View k, v;      // (n_kv_heads, own rows, head_dim) f16

 private:
	Backend& be_;
	const Config& cfg_;
	Buffer rows_, own_;
};

} // namespace kvrun
