// A layer's mixture of experts: the choice, the chosen experts, the shared MLP. The choice stays on the device.
#include "engine/run/layer_runner.h"
#include <cmath>

namespace kvrun {

ExpertRows LayerRunner::sorted(const Experts& e, const View& ids, bool decode) {
	ExpertRows slots{e.n, ids};
	if (decode) return slots;
	slots.tiles = rows(mlp_.tiles, 0, expert_tiles(ids.shape[0] * e.used, e.n));
	be_.sort_slots(slots.tiles, ids, e.n);
	return slots;
}

// v = the weighted sum of silu(w h) of the experts that each row of h (n, dim) chooses.
void LayerRunner::mix_value_experts(const Layer& layer, const ExpertWeights& w, const View& h, const LayerRows& r,
                                    bool decode) {
	const Experts& e = layer.value_experts;
	const uint32_t n = r.n, width = e.hidden_dim;
	choose(e, w, h, 1, 1, r.tokens, decode);
	const View ids = shaped(mlp_.ids, n, e.used), weights = shaped(mlp_.weights, n, e.used),
	           made = shaped(mlp_.slot_gate, n, e.used, width), v = shaped(r.v, n, width);
	const ExpertRows slots = sorted(e, ids, decode);
	const Proj of_slots[] = {{made, w.w_up, {}}};
	be_.expert_matmul(of_slots, h, slots, Epilogue::None, decode);
	loras_.add_experts(of_slots, h, slots, decode);
	be_.activate(made, made, {}, {.function = Activation::Silu});
	be_.activate(v, shaped(made, n, width), {}, {.scale = 0});
	be_.expert_sum(v, made, weights);
}

// Runs on h (n, width) the expert of each slot of `ids`; writes mlp_.slot_out (n, used, width).
void LayerRunner::run_experts(const Layer& layer, const ExpertWeights& w, const View& h, const View& ids, bool decode) {
	const Experts& e = layer.experts;
	const uint32_t n = h.shape[0];
	const ExpertRows slots = sorted(e, ids, decode);
	const View gate = shaped(mlp_.slot_gate, n, e.used, e.hidden_dim);
	const bool gated = layer.mlp == MlpKind::Gated;
	const View& room = mlp_.slot_up ? mlp_.slot_up : loras_.slot_up();
	const View up = room ? shaped(room, n, e.used, e.hidden_dim) : View();
	const Proj apart[] = {{gate, w.w_gate, w.b_gate}, {up, w.w_up, w.b_up}};
	const std::span<const Proj> in = std::span(apart).subspan(gated ? 0 : 1);
	if (experts_fuse_gates(layer) && !loras_.change(in)) {
		const Proj gate_up[] = {{gate, w.w_gate, w.b_gate}, {gate, w.w_up, w.b_up}};
		be_.expert_matmul(gate_up, h, slots, e.clamped ? Epilogue::ClampedSwiGLU : Epilogue::SwiGLU, decode);
	} else {
		be_.expert_matmul(in, h, slots, Epilogue::None, decode);
		loras_.add_experts(in, h, slots, decode);
		View from = gated ? gate : up;
		if (experts_weigh_gates(layer)) {
			KV_ASSERT(gated);
			from = shaped(mlp_.slot_weighed, n, e.used, e.hidden_dim);
			const uint32_t all = n * e.used;
			be_.activate(from, gate, {}, {.scale = 0});
			be_.expert_sum(shaped(from, all, e.hidden_dim), shaped(gate, all, 1, e.hidden_dim),
			               shaped(mlp_.weights, all, 1));
		}
		if (e.limit != kUnlimited)
			limited_swiglu(be_, gate, up, e.limit, layer.limits_gate);
		else if (layer.gate_cap)
			capped_swiglu(be_, gate, up, layer);
		else
			be_.activate(gate, from, gated ? up : View(), {.function = layer.activation});
	}
	const Proj down[] = {{shaped(mlp_.slot_out, n, e.used, h.shape[1]), w.w_down, w.b_down}};
	const View hidden = shaped(gate, n * e.used, e.hidden_dim);
	be_.expert_matmul(down, hidden, slots, Epilogue::None, decode);
	loras_.add_experts(down, hidden, slots, decode);
}

float LayerRunner::expert_scale(const Layer& layer) {
	const Experts& e = layer.experts;
	return (e.shared_mean && e.shared_dim ? 0.5f : 1) * (layer.mlp_out_norm ? 1 : layer.residual_scale);
}

// Chooses experts for h (n, dim); writes mlp_.ids and mlp_.weights.
void LayerRunner::choose(const Experts& e, const ExpertWeights& w, const View& h, float logit_scale, float scale,
                         const TokenViews& tokens, bool decode) {
	const uint32_t n = h.shape[0];
	const View logits = shaped(mlp_.logits, n, e.n);
	const Proj router[] = {{logits, w.router, w.router_bias}};
	multiply(router, h, Epilogue::None, decode);
	if (logit_scale != 1) be_.activate(logits, logits, {}, {.scale = logit_scale});
	RouteArgs how{e.gating, e.normalise, e.scale * scale, w.choice_bias, e.n_groups, e.used_groups, w.factors};
	if (e.by_token) how.of_tokens = w.of_tokens, how.tokens = tokens.ids;
	be_.route(shaped(mlp_.ids, n, e.used), shaped(mlp_.weights, n, e.used), logits, how);
}

void LayerRunner::run_experts_at_input(const Layer& layer, const ExpertWeights& w, const LayerRows& r, bool decode) {
	norm(r.h, r.x, w.norm);
	choose(layer.experts, w, r.h, 1, expert_scale(layer), r.tokens, decode);
	run_experts(layer, w, r.h, shaped(mlp_.ids, r.n, layer.experts.used), decode);
}

void LayerRunner::add_experts_at_input(const Layer& layer, const LayerRows& r) {
	const uint32_t n = r.n, used = layer.experts.used;
	be_.expert_sum(r.x, shaped(mlp_.slot_out, n, used, cfg_.dim), shaped(mlp_.weights, n, used));
}

// x += norm(norm(MLP of x) + norm(experts of x)). MLP, experts and router each read x through a norm of their own.
void LayerRunner::mix_beside_mlp(const Layer& layer, const LayerWeights& L, const LayerRows& r, bool decode) {
	const Experts& e = layer.experts;
	const ExpertWeights& w = L.experts;
	const uint32_t n = r.n;
	const View gate = shaped(r.gate, n, layer.hidden_dim), up = shaped(r.up, n, layer.hidden_dim);
	const View hidden =
	    run_mlp(layer, {{{gate, L.w_gate, L.b_gate}, {up, L.w_up, L.b_up}}}, r.x, &L.mlp_norm, r.h, decode);
	const Proj down[] = {{r.branch, L.w_down, L.b_down}};
	multiply(down, hidden, Epilogue::None, decode);
	norm(r.branch, r.branch, w.mlp_out_norm);
	be_.rmsnorm(r.h, r.x, w.router_norm, cfg_.norm_eps);
	choose(e, w, r.h, 1 / std::sqrt(float(cfg_.dim)), 1, r.tokens, decode);
	norm(r.h, r.x, w.norm);
	const View ids = shaped(mlp_.ids, n, e.used), weights = shaped(mlp_.weights, n, e.used);
	run_experts(layer, w, r.h, ids, decode);
	be_.activate(r.h, r.h, {}, {.scale = 0});
	be_.expert_sum(r.h, shaped(mlp_.slot_out, n, e.used, cfg_.dim), weights);
	norm(r.h, r.h, w.out_norm);
	be_.activate(r.branch, r.h, {}, {.add = true});
	norm(r.branch, r.branch, L.mlp_out_norm, out_norm_eps());
	be_.activate(r.x, r.branch, {}, {.scale = layer.residual_scale, .add = true});
}

void LayerRunner::mix(const Layer& layer, const LayerWeights& L, const LayerRows& r, bool decode) {
	const Experts& e = layer.experts;
	if (e.beside_mlp) return mix_beside_mlp(layer, L, r, decode);
	const ExpertWeights& w = L.experts;
	const bool raw = layer.mlp_input == MlpInput::Raw, sum_normed = layer.mlp_out_norm && layer.norms_sum;
	const bool apart = (layer.mlp_out_norm && !sum_normed) || cfg_.streams.hyper(); // the sum is made in `branch`
	// Adding the sum would change rows that are still to be read.
	KV_ASSERT(!raw || apart || (sum_normed && !e.shared_dim));
	if (has_mlp_norm(layer.mlp_input)) norm(r.h, r.x, L.mlp_norm);
	const View& h = raw ? r.x : r.h;
	const uint32_t n = r.n;
	const View ids = shaped(mlp_.ids, n, e.used), weights = shaped(mlp_.weights, n, e.used);
	const float scale = expert_scale(layer);
	if (!e.early) choose(e, w, h, 1, scale, r.tokens, decode);
	View sum = r.sum ? r.sum : r.x;
	KV_ASSERT(!e.weigh_input || (scale == 1 && !layer.mlp_out_norm));
	if (e.weigh_input && e.used == 1) {
		be_.activate(r.branch, r.h, {}, {.scale = 0});
		be_.expert_sum(r.branch, shaped(r.h, n, 1, cfg_.dim), weights);
		run_experts(layer, w, r.branch, ids, decode);
		be_.activate(sum, shaped(mlp_.slot_out, n, cfg_.dim), {}, {.add = true});
		if (e.shared_dim) add_shared(layer, w, r, h, sum, scale, decode);
		return;
	}
	if (apart) sum = r.branch;
	if (e.latent_dim) {
		mix_latent(layer, w, h, sum, apart ? Epilogue::None : Epilogue::Add, decode);
	} else {
		run_experts(layer, w, h, ids, decode);
		if (apart) be_.activate(sum, h, {}, {.scale = 0});
		be_.expert_sum(sum, shaped(mlp_.slot_out, n, e.used, cfg_.dim), weights);
	}
	if (e.shared_dim) add_shared(layer, w, r, h, sum, scale, decode);
	if (layer.mlp_out_norm) norm(sum, sum, L.mlp_out_norm, out_norm_eps());
	if (apart) add_branch(layer, r);
}

// Between two matrices, experts read rows of latent_dim channels, and so wide is their weighted sum.
void LayerRunner::mix_latent(const Layer& layer, const ExpertWeights& w, const View& h, const View& sum, Epilogue end,
                             bool decode) {
	const Experts& e = layer.experts;
	const uint32_t n = h.shape[0];
	const View latent = shaped(mlp_.latent, n, e.latent_dim);
	const Proj narrow[] = {{latent, w.latent_down, {}}}, widen[] = {{sum, w.latent_up, {}}};
	multiply(narrow, h, Epilogue::None, decode);
	run_experts(layer, w, latent, shaped(mlp_.ids, n, e.used), decode);
	be_.activate(latent, latent, {}, {.scale = 0});
	be_.expert_sum(latent, shaped(mlp_.slot_out, n, e.used, e.latent_dim), shaped(mlp_.weights, n, e.used));
	if (e.latent_norm) be_.rmsnorm(latent, latent, w.latent_norm, cfg_.norm_eps);
	multiply(widen, latent, end, decode);
}

// The shared MLP: sum (n, dim) += scale * (MLP of h), times its gate if it has one.
void LayerRunner::add_shared(const Layer& layer, const ExpertWeights& w, const LayerRows& r, const View& h,
                             const View& sum, float scale, bool decode) {
	const uint32_t n = r.n, dim = layer.experts.shared_dim;
	const View gate = shaped(r.gate, n, dim), up = shaped(r.up, n, dim);
	const View hidden = run_mlp(layer, {{{gate, w.shared_gate, {}}, {up, w.shared_up, {}}}}, h, nullptr, {}, decode);
	if (!w.shared_switch && scale == 1) {
		const Proj down[] = {{sum, w.shared_down, {}}};
		return multiply(down, hidden, Epilogue::Add, decode);
	}
	const View out = shaped(mlp_.slot_out, n, cfg_.dim);
	const Proj down[] = {{out, w.shared_down, {}}};
	multiply(down, hidden, Epilogue::None, decode);
	if (!w.shared_switch) return be_.activate(sum, out, {}, {.scale = scale, .add = true});
	// It is treated as one expert that every token chooses; its weight is the sigmoid of its logit.
	const View logit = shaped(mlp_.logits, n, 1), id = shaped(mlp_.ids, n, 1), weight = shaped(mlp_.weights, n, 1);
	const Proj open[] = {{logit, w.shared_switch, {}}};
	multiply(open, h, Epilogue::None, decode);
	be_.route(id, weight, logit, {Gating::Sigmoid, false, scale, {}});
	be_.expert_sum(sum, shaped(out, n, 1, cfg_.dim), weight);
}

} // namespace kvrun
