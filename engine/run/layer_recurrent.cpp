// A recurrent layer: short convolution, gated delta rule, norm and gate of the output, with a decay per head or per
// channel; or the scan of a state space; or a convolution between gates; or the delta rule with keys of what it
// forgets.
#include "engine/run/layer_runner.h"

namespace kvrun {

// For norms of q and k, and for those of StepNorm::Unit (Falcon Mamba); files have no key for them.
constexpr float kDeltaEps = 1e-6f, kUnitStepEps = 1e-6f;
// Of RecurrentKind::Removal: the least length of a key of what is forgotten, the norm of heads, the logarithm of the
// fastest decay.
constexpr float kLeastLength = 1e-12f, kHeadNormEps = 64e-5f, kFastestDecay = -0.60653066f; // -exp(-1/2)

void LayerRunner::recur(uint32_t l, const LayerRows& r, bool decode) {
	const Recurrent& how = cfg_.layers[l].recurrent;
	const std::span<const StateGroup> groups = r.states;
	if (how.kind == RecurrentKind::Removal) return recur_with_removal(l, r, decode);
	if (how.kind == RecurrentKind::ShortConv) return convolve(l, r, groups, decode);
	if (how.kind == RecurrentKind::ChannelDelta) return recur_by_channel(l, r, groups, decode);
	if (how.kind == RecurrentKind::StateSpace) return scan(l, r, groups, decode);
	if (how.kind == RecurrentKind::SelectiveScan) return scan_by_channel(l, r, groups, decode);
	const RecurrentWeights& w = weights_of(l).recurrent;
	const uint32_t n = r.n;
	const View mixed = rows(recurrent_.mixed, 0, n), conv = rows(recurrent_.conv, 0, n),
	           gate = rows(recurrent_.gate, 0, n), beta = rows(recurrent_.beta, 0, n),
	           alpha = rows(recurrent_.alpha, 0, n);
	const View& h = input(l, r);
	const Proj wide[] = {{mixed, w.qkv, {}}, {gate, w.gate, {}}}, narrow[] = {{beta, w.beta, {}}, {alpha, w.alpha, {}}};
	multiply(wide, h, Epilogue::None, decode);
	multiply(narrow, h, Epilogue::None, decode);
	for (const StateGroup& g : groups) {
		be_.short_conv(conv, mixed, w.conv, g.conv, {});
		be_.delta_rule(shaped(r.values, n, how.n_heads, how.v_dim), conv, {beta, alpha, w.rate, w.shift}, g.rule,
		               {how.n_key_heads, how.k_dim, how.tiled, kDeltaEps});
	}
	const View heads = shaped(r.values, n * how.n_heads, how.v_dim);
	be_.rmsnorm(heads, heads, w.norm, cfg_.norm_eps);
	be_.activate(r.values, gate, r.values, {.function = how.gate_function});
}

// The words of states from word n on.
static StateRows behind(const StateRows& s, uint32_t n) {
	const auto from = [n](View v) {
		v.at += size_t(n) * sizeof(float), v.shape[0] -= n;
		return v;
	};
	return {s.work, from(s.from), from(s.to)};
}

// Queries, keys and values are one third of `mixed` and of the convolution's state each, one behind the other.
void LayerRunner::recur_by_channel(uint32_t l, const LayerRows& r, std::span<const StateGroup> groups, bool decode) {
	const Recurrent& how = cfg_.layers[l].recurrent;
	const RecurrentWeights& w = weights_of(l).recurrent;
	const uint32_t n = r.n, words = how.conv_words() / 3;
	const View mixed = rows(recurrent_.mixed, 0, n), conv = rows(recurrent_.conv, 0, n),
	           gate = rows(recurrent_.gate, 0, n), beta = rows(recurrent_.beta, 0, n),
	           alpha = rows(recurrent_.alpha, 0, n);
	const auto third = [&](const View& v, uint32_t i) { return rows(shaped(v, 3 * n, how.values()), i * n, n); };
	const View& h = input(l, r);
	const Proj wide[] = {{third(mixed, 0), w.q, {}}, {third(mixed, 1), w.k, {}}, {third(mixed, 2), w.v, {}}},
	           decays[] = {{alpha, w.alpha, {}}}, gates[] = {{gate, w.gate, {}}};
	multiply(wide, h, Epilogue::None, decode);
	if (how.full_gates) {
		const Proj all[] = {decays[0], gates[0], {beta, w.beta, {}}};
		multiply(all, h, Epilogue::None, decode);
	} else {
		const View low = rows(recurrent_.low, 0, n), low_gate = how.full_gate ? gate : rows(recurrent_.low_gate, 0, n);
		const Proj narrow[] = {
		    {low, w.alpha_low, {}}, {low_gate, how.full_gate ? w.gate : w.gate_low, {}}, {beta, w.beta, {}}};
		multiply(narrow, h, Epilogue::None, decode);
		multiply(decays, low, Epilogue::None, decode);
		if (!how.full_gate) multiply(gates, low_gate, Epilogue::None, decode);
	}
	const View* taps[] = {&w.conv_q, &w.conv_k, &w.conv_v};
	for (const StateGroup& g : groups) {
		for (uint32_t i = 0; i < 3; ++i)
			be_.short_conv(third(conv, i), third(mixed, i), *taps[i], behind(g.conv, i * words), {});
		be_.delta_rule(shaped(r.values, n, how.n_heads, how.v_dim), conv, {beta, alpha, w.rate, w.shift}, g.rule,
		               {how.n_heads, how.k_dim, false, kDeltaEps, true, true, how.bound});
	}
	const View heads = shaped(r.values, n * how.n_heads, how.v_dim);
	be_.rmsnorm(heads, heads, w.norm, cfg_.norm_eps);
	be_.activate(r.values, gate, r.values, {.function = Activation::Sigmoid});
}

// Mixes of each row and the one before it: for queries, decays, keys, values, rates and the gate.
void LayerRunner::recur_with_removal(uint32_t l, const LayerRows& r, bool decode) {
	const Recurrent& how = cfg_.layers[l].recurrent;
	const RecurrentWeights& w = weights_of(l).recurrent;
	const uint32_t n = r.n;
	const View mixed = shaped(recurrent_.mixed, how.mixes() * n, cfg_.dim), x = rows(recurrent_.conv, 0, n),
	           alpha = rows(recurrent_.alpha, 0, n), beta = rows(recurrent_.beta, 0, n),
	           gate = rows(recurrent_.gate, 0, n), own = rows(recurrent_.own, 0, n);
	const auto mix = [&](uint32_t i) { return rows(mixed, i * n, n); };
	const auto third = [&](uint32_t i) { return rows(shaped(x, 3 * n, how.values()), i * n, n); };
	const auto low = [&](uint32_t i) { return recurrent_.rank_of[i] ? rows(recurrent_.rank_of[i], 0, n) : View(); };
	const auto project = [&](std::initializer_list<Proj> projs, const View& from) {
		multiply(std::span(projs.begin(), projs.size()), from, Epilogue::None, decode);
	};
	const View& h = input(l, r);
	for (const StateGroup& g : r.states)
		be_.short_conv(mixed, h, w.conv, g.conv, {.silu = false, .mixes = how.mixes()});
	project({{third(0), w.q, {}}}, mix(0));
	project({{low(0), w.alpha_low, {}}}, mix(1));
	project({{third(1), w.k, {}}}, mix(2));
	if (how.share_rank)
		project({{third(2), w.v, {}}, {low(2), w.share_low, {}}}, mix(3));
	else
		project({{third(2), w.v, {}}}, mix(3));
	project({{low(1), w.beta_low, {}}}, mix(4));
	be_.activate(low(0), low(0), {}, {.cap = 1}); // tanh
	project({{alpha, w.alpha, {}}}, low(0));
	project({{beta, w.beta, w.beta_b}}, low(1));
	if (how.gate_rank) {
		project({{low(3), w.gate_low, {}}}, mix(5));
		be_.activate(low(3), low(3), {}, {.function = Activation::Sigmoid});
		project({{gate, w.gate, {}}}, low(3));
	}
	if (how.share_rank) project({{rows(recurrent_.share, 0, n), w.share, w.share_b}}, low(2));
	if (r.first_values) mix_first_values(how, third(2), r);
	for (const StateGroup& g : r.states)
		be_.delta_rule(shaped(r.values, n, how.n_heads, how.v_dim), x,
		               {beta, alpha, rows(ones_, 0, how.n_heads), w.shift, w.removal, w.taken, w.bonus}, g.rule,
		               {how.n_heads, how.k_dim, false, kLeastLength, true, true, kFastestDecay},
		               shaped(own, n, how.n_heads, how.v_dim));
	const View heads = shaped(r.values, n * how.n_heads, how.v_dim);
	if (how.normed) be_.layer_norm(heads, heads, w.norm, w.norm_b, kHeadNormEps);
	be_.activate(r.values, own, {}, {.add = true});
	if (how.gate_rank) be_.activate(r.values, gate, r.values, {});
}

// v += sigmoid(share) * (first values - v), of all layers but the first, whose values are the first ones.
void LayerRunner::mix_first_values(const Recurrent& how, const View& v, const LayerRows& r) {
	if (!how.share_rank) return be_.copy(r.first_values, v);
	const View share = rows(recurrent_.share, 0, r.n), part = rows(recurrent_.own, 0, r.n);
	be_.activate(part, share, v, {.function = Activation::Sigmoid});
	be_.activate(v, share, r.first_values, {.function = Activation::Sigmoid, .add = true});
	be_.activate(v, part, {}, {.scale = -1, .add = true});
}

View LayerRunner::mix_mlp_input(const LayerWeights& w, const LayerRows& r) {
	const View mixed = shaped(recurrent_.mixed, r.n, cfg_.dim);
	norm(r.h, r.x, w.mlp_norm);
	for (const StateGroup& g : r.states)
		be_.short_conv(mixed, r.h, w.mlp_mix, behind(g.conv, cfg_.dim), {.silu = false, .mixes = 1});
	return mixed;
}

// values = norm(scan of the convolution * silu(gate)), a norm for each group of heads
void LayerRunner::scan(uint32_t l, const LayerRows& r, std::span<const StateGroup> groups, bool decode) {
	const Recurrent& how = cfg_.layers[l].recurrent;
	const RecurrentWeights& w = weights_of(l).recurrent;
	const uint32_t n = r.n;
	const View mixed = rows(recurrent_.mixed, 0, n), conv = rows(recurrent_.conv, 0, n),
	           gate = rows(recurrent_.gate, 0, n), step = rows(recurrent_.alpha, 0, n);
	const View& h = input(l, r);
	const Proj in[] = {{gate, w.gate, {}}, {mixed, w.qkv, {}}, {step, w.alpha, {}}};
	multiply(in, h, Epilogue::None, decode);
	for (const StateGroup& g : groups) {
		be_.short_conv(conv, mixed, w.conv, g.conv, {.bias = w.conv_bias});
		be_.ssm_scan(shaped(r.values, n, how.n_heads, how.v_dim), conv, {step, w.rate, w.shift, w.skip}, g.rule,
		             {how.n_key_heads, how.k_dim});
	}
	be_.activate(r.values, gate, r.values, {.function = Activation::Silu});
	if (!how.normed) return;
	const View heads = shaped(r.values, n * how.n_key_heads, how.values() / how.n_key_heads);
	be_.rmsnorm(heads, heads, w.norm, cfg_.norm_eps);
}

// values = selective scan of the convolution * silu(gate); B, C and steps are made of the convolution.
void LayerRunner::scan_by_channel(uint32_t l, const LayerRows& r, std::span<const StateGroup> groups, bool decode) {
	const Recurrent& how = cfg_.layers[l].recurrent;
	const RecurrentWeights& w = weights_of(l).recurrent;
	const uint32_t n = r.n;
	const View mixed = rows(recurrent_.mixed, 0, n), conv = rows(recurrent_.conv, 0, n),
	           gate = rows(recurrent_.gate, 0, n), step = rows(recurrent_.alpha, 0, n),
	           low = rows(recurrent_.step_low, 0, n), b = rows(recurrent_.b, 0, n), c = rows(recurrent_.c, 0, n);
	const View& h = input(l, r);
	const Proj in[] = {{mixed, w.qkv, {}}, {gate, w.gate, {}}};
	multiply(in, h, Epilogue::None, decode);
	for (const StateGroup& g : groups) be_.short_conv(conv, mixed, w.conv, g.conv, {.bias = w.conv_bias});
	const Proj of_values[] = {{low, w.step_low, {}}, {b, w.b, {}}, {c, w.c, {}}}, steps[] = {{step, w.alpha, {}}};
	multiply(of_values, conv, Epilogue::None, decode);
	if (how.step_norm != StepNorm::None) {
		const bool unit = how.step_norm == StepNorm::Unit;
		const float eps = unit ? kUnitStepEps : cfg_.norm_eps;
		for (const auto& [x, weights] : {std::pair{low, w.step_norm}, {b, w.b_norm}, {c, w.c_norm}})
			be_.rmsnorm(x, x, unit ? rows(ones_, 0, x.shape[1]) : weights, eps);
	}
	multiply(steps, low, Epilogue::None, decode);
	for (const StateGroup& g : groups)
		be_.selective_scan(r.values, conv, {step, b, c, w.rate, w.shift, w.skip}, g.rule);
	be_.activate(r.values, gate, r.values, {.function = Activation::Silu});
}

// values = gate * convolution of (mixed * values)
void LayerRunner::convolve(uint32_t l, const LayerRows& r, std::span<const StateGroup> groups, bool decode) {
	const RecurrentWeights& w = weights_of(l).recurrent;
	const View mixed = rows(recurrent_.mixed, 0, r.n), conv = rows(recurrent_.conv, 0, r.n),
	           gate = rows(recurrent_.gate, 0, r.n);
	const View& h = input(l, r);
	const Proj in[] = {{mixed, w.qkv, {}}, {gate, w.gate, {}}, {r.values, w.value, {}}};
	multiply(in, h, Epilogue::None, decode);
	be_.activate(mixed, mixed, r.values, {});
	for (const StateGroup& g : groups) be_.short_conv(conv, mixed, w.conv, g.conv, {.silu = false});
	be_.activate(r.values, gate, conv, {});
}

} // namespace kvrun
