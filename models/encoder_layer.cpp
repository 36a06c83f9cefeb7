// Weights of the layers that encoders of images and of sounds have alike.
#include "models/encoder_layer.h"

namespace kvrun {

// Channels of n heads of q and k in the order in which PatchRotation::Quarters pairs i and i + head_dim / 2.
static std::vector<uint32_t> paired_quarters(uint32_t n, uint32_t head_dim) {
	std::vector<uint32_t> out;
	const uint32_t half = head_dim / 2, quarter = head_dim / 4;
	for (uint32_t h = 0; h < n; ++h)
		for (uint32_t i = 0; i < head_dim; ++i) {
			const uint32_t second = i / half, pair = i % half;
			out.push_back(h * head_dim + pair / quarter * half + second * quarter + pair % quarter);
		}
	return out;
}

void load_encoder_layer(EncoderTensors& g, const Config& c, uint32_t l, const EncoderLayer& how, LayerWeights& to) {
	const uint64_t dim = c.dim, hidden = c.hidden_dim;
	const uint32_t heads = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
	const auto name = [&](const char* what) { return how.prefix + what; };
	const auto factors = [&](const char* what) {
		return how.scales ? g.values(g.need(name(what), 1, dim)) : std::vector<float>();
	};
	const auto project = [&](View& w, View& b, const char* what, uint64_t rows, uint64_t cols,
	                         const std::vector<float>& by = {}, const std::vector<uint32_t>& order = {}) {
		g.matrix(w, g.need(name(what) + ".weight", rows, cols), by, order);
		g.bias(b, name(what) + ".bias", rows, by, order);
		if (how.limited) g.limits(w, name(what));
	};
	const auto order = [&](uint32_t n) {
		return how.quarters ? paired_quarters(n, c.head_dim) : std::vector<uint32_t>();
	};
	g.norm(to.attn_norm, name("ln1"), dim);
	if (!how.quarters && g.find(name("attn_qkv.weight"), kAnySize, kAnySize)) {
		const std::array<uint32_t, 3> rows = {heads, kv, kv};
		g.parts({&to.wq, &to.wk, &to.wv}, g.need(name("attn_qkv.weight"), heads + 2 * kv, dim), rows);
		g.parts_of_bias({&to.bq, &to.bk, &to.bv}, name("attn_qkv.bias"), rows);
	} else {
		project(to.wq, to.bq, "attn_q", heads, dim, {}, order(c.n_heads));
		project(to.wk, to.bk, "attn_k", kv, dim, {}, order(c.n_kv_heads));
		project(to.wv, to.bv, "attn_v", kv, dim);
	}
	if (c.layers[l].qk_norm != QkNorm::None) {
		g.weights(to.q_norm, name("attn_q_norm"), c.head_dim, order(1));
		g.weights(to.k_norm, name("attn_k_norm"), c.head_dim, order(1));
	}
	project(to.wo, to.bo, "attn_out", dim, heads, factors("ls1.weight"));
	if (c.layers[l].attn_out_norm) g.norm(to.attn_out_norm, name("attn_post_norm"), dim);
	if (c.layers[l].mlp == MlpKind::None) return;
	g.norm(to.mlp_norm, name("ln2"), dim);
	if (c.layers[l].mlp_out_norm) g.norm(to.mlp_out_norm, name("ffn_post_norm"), dim);
	const char *up = "ffn_up", *down = "ffn_down";
	if (const GgufTensor* t = g.find(name("ffn_down.weight"), kAnySize, kAnySize);
	    how.swapped_mlp && t && t->cols() == dim && dim != hidden)
		std::swap(up, down);
	if (c.layers[l].mlp == MlpKind::Gated) project(to.w_gate, to.b_gate, "ffn_gate", hidden, dim);
	project(to.w_up, to.b_up, up, hidden, dim);
	project(to.w_down, to.b_down, down, dim, hidden, factors("ls2.weight"));
}

} // namespace kvrun
