// Dense MLPs of layers.
#include "engine/run/layer_runner.h"
#include <cmath>

namespace kvrun {

void LayerRunner::run_mlp_part(uint32_t l, const LayerRows& r, bool decode) {
	const Layer& layer = cfg_.layers[l];
	const LayerWeights& L = weights_of(l);
	if (layer.experts.n && !layer.experts.at_input)
		mix(layer, L, r, decode);
	else if (layer.mlp != MlpKind::None)
		run_dense(layer, L, r, decode);
	if (layer.experts.at_input) add_experts_at_input(layer, r);
}

void LayerRunner::run_dense(const Layer& layer, const LayerWeights& L, const LayerRows& r, bool decode) {
	const View gate = shaped(r.gate, r.n, layer.hidden_dim), up = shaped(r.up, r.n, layer.hidden_dim);
	const bool normed = has_mlp_norm(layer.mlp_input) && !layer.mlp_shift;
	const View from = layer.mlp_shift ? mix_mlp_input(L, r) : layer.mlp_input == MlpInput::Parallel ? r.h : r.x;
	const View hidden = run_mlp(layer, {{{gate, L.w_gate, L.b_gate}, {up, L.w_up, L.b_up}}}, from,
	                            normed ? &L.mlp_norm : nullptr, r.h, decode);
	if (layer.mlp_gain != 1) be_.activate(hidden, hidden, {}, {.scale = layer.mlp_gain});
	if (layer.sub_norms) be_.rmsnorm(hidden, hidden, L.mlp_sub_norm, cfg_.norm_eps);
	add(layer, r, {{}, L.w_down, L.b_down}, hidden, layer.mlp_out_norm ? &L.mlp_out_norm : nullptr, decode);
}

View LayerRunner::run_mlp(const Layer& layer, const std::array<Proj, 2>& gate_up, const View& x,
                          const NormWeights* norm, const View& h, bool decode) {
	const bool gated = layer.mlp == MlpKind::Gated, limited = layer.mlp_limit != kUnlimited,
	           swiglu =
	               gated && layer.activation == Activation::Silu && !limited && !layer.clamped_mlp && !layer.gate_cap;
	const std::span<const Proj> in = std::span(gate_up).subspan(gated ? 0 : 1);
	const Epilogue epilogue = swiglu ? Epilogue::SwiGLU : Epilogue::None;
	if (norm)
		norm_matmul(in, h, x, *norm, epilogue, decode);
	else
		multiply(in, x, epilogue, decode);
	const View &gate = gate_up[0].out, &up = gate_up[1].out, &hidden = gated ? gate : up;
	if (std::isfinite(layer.gate_cut)) be_.gaussian_top_k(gate, gate, layer.gate_cut);
	if (limited)
		limited_swiglu(be_, gate, up, layer.mlp_limit, layer.limits_gate);
	else if (layer.clamped_mlp)
		clamped_swiglu(be_, gate, up);
	else if (layer.gate_cap)
		capped_swiglu(be_, gate, up, layer);
	else if (!swiglu)
		be_.activate(hidden, hidden, gated ? up : View(), {.function = layer.activation, .xielu = layer.xielu});
	return hidden;
}

void limited_swiglu(Backend& be, const View& gate, const View& up, float limit, bool limits_gate) {
	const Elementwise silu{.function = Activation::Silu},
	    least{.function = Activation::Clamp, .range = {-kUnlimited, limit}};
	be.activate(gate, gate, {}, limits_gate ? least : silu);
	be.activate(up, up, {}, {.function = Activation::Clamp, .range = {-limit, limit}});
	be.activate(gate, gate, up, limits_gate ? silu : least);
}

void clamped_swiglu(Backend& be, const View& gate, const View& up) {
	static_assert(KV_GLU_ALPHA == 1.702f); // Activation::GeluQuick's
	const auto clamp = [&](const View& v, float low) {
		be.activate(v, v, {}, {.function = Activation::Clamp, .range = {low, KV_GLU_LIMIT}});
	};
	clamp(gate, -kUnlimited), clamp(up, -KV_GLU_LIMIT);
	be.activate(gate, gate, {}, {.function = Activation::GeluQuick});
	be.activate(gate, gate, up, {.add = true});
}

void capped_swiglu(Backend& be, const View& gate, const View& up, const Layer& l) {
	if (l.up_cap) be.activate(up, up, {}, {.cap = l.up_cap});
	be.activate(up, gate, up, {.function = Activation::Sigmoid});
	be.activate(gate, gate, {}, {.cap = l.gate_cap});
	be.activate(gate, gate, up, {});
}

} // namespace kvrun
