// Small models with experts, made in memory.
#pragma once
#include "tests/support/gguf_builder.h"

namespace kvrun {

struct TinyMixture {
	std::string arch = "llama";
	uint32_t n = 4, used = 2, hidden = 8, shared = 0, dense_first = 0, n_layers = 2;
	bool fused = false, bias = false, choice_bias = false, shared_gate = false;
};

// tiny_model() with experts of small random weights in place of its MLPs.
inline GgufBuilder tiny_mixture(const TinyMixture& m = {}) {
	TinyShape s;
	s.arch = m.arch, s.n_layers = m.n_layers;
	GgufBuilder b = tiny_model(s);
	auto key = [&](const char* k) { return m.arch + "." + k; };
	b.u32(key("expert_count"), m.n).u32(key("expert_used_count"), m.used);
	b.u32(key("expert_feed_forward_length"), m.hidden);
	if (m.dense_first) b.u32(key("leading_dense_block_count"), m.dense_first);
	std::mt19937 rng(2);
	auto add = [&](const std::string& name, std::vector<uint64_t> dims) {
		size_t elements = 1;
		for (const uint64_t d : dims) elements *= d;
		std::vector<float> v(elements);
		for (float& x : v) x = float(rng() % 2001) / 1000.f - 1.f;
		b.tensor_f32(name, std::move(dims), v);
	};
	for (uint32_t l = m.dense_first; l < m.n_layers; ++l) {
		const std::string p = "blk." + std::to_string(l) + ".";
		for (const char* what : {"ffn_gate", "ffn_up", "ffn_down"}) b.erase_tensor(p + what + ".weight");
		auto experts = [&](const std::string& what, uint64_t cols, uint64_t rows) {
			add(p + what + ".weight", {cols, rows, m.n});
			if (m.bias) add(p + what + ".bias", {rows, m.n});
		};
		add(p + "ffn_gate_inp.weight", {s.dim, m.n});
		if (m.choice_bias) add(p + "exp_probs_b.bias", {m.n});
		if (m.fused) {
			experts("ffn_gate_up_exps", s.dim, 2 * uint64_t(m.hidden));
		} else {
			experts("ffn_gate_exps", s.dim, m.hidden);
			experts("ffn_up_exps", s.dim, m.hidden);
		}
		experts("ffn_down_exps", m.hidden, s.dim);
		if (!m.shared) continue;
		if (m.shared_gate) add(p + "ffn_gate_inp_shexp.weight", {s.dim});
		add(p + "ffn_gate_shexp.weight", {s.dim, m.shared});
		add(p + "ffn_up_shexp.weight", {s.dim, m.shared});
		add(p + "ffn_down_shexp.weight", {m.shared, s.dim});
	}
	return b;
}

} // namespace kvrun
