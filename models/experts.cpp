// Mixtures of experts as files describe them.
#include "models/experts.h"
#include "models/recurrent.h"
#include "shared/experts.h"
#include <algorithm>

namespace kvrun {
namespace {

std::string tensor_name(uint32_t l, const char* what, const char* kind = "weight") {
	return fmt::format("blk.{}.{}.{}", l, what, kind);
}

// Refuses a key outside its limits.
uint32_t within(const ConfigKeys& k, const char* key, uint32_t v, uint32_t lowest, uint32_t highest, const char* of) {
	if (v < lowest || v > highest)
		fail(Code::Format, "{}: key {} is {}, expected {} to {}{}; the file is damaged", k.g.name(), k.key(key), v,
		     lowest, highest, of);
	return v;
}

Gating read_gating(const ConfigKeys& k, Experts& e) {
	switch (const uint32_t v = k.u32("expert_gating_func", 0); v) {
	case 0: return e.gating; // default of the family
	case 1: return Gating::Softmax;
	case 2: return Gating::Sigmoid;
	case 3: e.normalise = true; return Gating::Softmax; // over the chosen experts
	case 4: return Gating::SqrtSoftplus;
	default:
		fail(Code::Unsupported,
		     "{}: key {} is {}; kvrun knows 1 softmax, 2 sigmoid, 3 softmax of the chosen, "
		     "4 root of softplus",
		     k.g.name(), k.key("expert_gating_func"), v);
	}
}

void read_groups(const ConfigKeys& k, Experts& e) {
	const uint32_t groups = k.u32("expert_group_count", 0);
	if (groups < 2) return;
	if (e.gating == Gating::Near)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} without groups", k.g.name(),
		     k.key("expert_group_count"), groups, k.arch);
	e.n_groups = within(k, "expert_group_count", groups, 2, std::min(e.n, KV_MOST_GROUPS), " groups");
	e.used_groups =
	    within(k, "expert_group_used_count", k.u32("expert_group_used_count", groups), 1, groups, " groups");
	const uint32_t each = e.n / groups;
	if (e.n % groups != 0 || (e.choice_bias && each < 2) || uint64_t(each) * e.used_groups < e.used)
		fail(Code::Format, "{}: {} of {} experts cannot be chosen in {} of {} groups; the file is damaged", k.g.name(),
		     e.used, e.n, e.used_groups, groups);
}

// Traits that only tensors show; looks at the first layer that is a mixture.
void look_at_tensors(const ConfigKeys& k, MlpKind mlp, uint32_t l, Experts& e) {
	const Gguf& g = k.g;
	const auto find = [&](const char* what, const char* kind = "weight") {
		return g.find_tensor(tensor_name(l, what, kind));
	};
	if (find("ffn_gate.0"))
		fail(Code::Unsupported,
		     "{}: has a tensor for each expert, as {}; kvrun runs files with one for all experts, convert the model "
		     "again",
		     g.name(), tensor_name(l, "ffn_gate.0"));
	const bool bare = g.find_tensor(fmt::format("blk.{}.exp_probs_b", l));
	e.choice_bias = e.gating != Gating::Near && (bare || find("exp_probs_b", "bias"));
	e.choice_bias_bare = e.choice_bias && bare;
	e.router_bias |= find("ffn_gate_inp", "bias") != nullptr;
	e.bias |= find("ffn_down_exps", "bias") != nullptr;
	e.fused_gate_up = find("ffn_gate_up_exps");
	e.shared_gate = find("ffn_gate_inp_shexp");
	e.latent_norm = e.latent_dim && find(kLatentNorm);
	const GgufTensor* down = find("ffn_down_exps");
	e.factors = find("ffn_down_exps", "scale") && !(down && has_row_factor(down->type)); // weight_factors()
	const uint32_t said = k.u32("expert_shared_feed_forward_length", 0);
	const GgufTensor* up = find("ffn_up_shexp");
	e.shared_fused = mlp == MlpKind::Gated && up && said && up->rows() == 2 * uint64_t(said) && !find("ffn_gate_shexp");
	if (up)
		e.shared_dim = uint32_t(std::min<uint64_t>(up->rows(), UINT32_MAX));
	else if (k.u32("expert_shared_count", 0))
		e.shared_dim = e.hidden_dim; // check_tensor() reports a missing tensor
	if (said) e.shared_dim = said;
}

} // namespace

Mixture read_mixture(const ConfigKeys& k, const Family& f, const Config& c) {
	Mixture m;
	const uint32_t n = k.u32("expert_count", 0);
	if (n == 0 || (n == 1 && !f.mixture)) return m; // older files of dense models say 1
	if (!f.mixture)
		fail(Code::Unsupported, "{}: is a mixture of {} experts; kvrun runs dense models of {}", k.g.name(), n, f.arch);
	if (n > KV_MOST_EXPERTS)
		fail(Code::Unsupported, "{}: is a mixture of {} experts; kvrun runs up to {}", k.g.name(), n, KV_MOST_EXPERTS);
	Experts& e = m.experts = f.layer.experts;
	e.n = n;
	e.used = within(k, "expert_used_count", k.u32_same("expert_used_count"), 1, std::min(n, KV_MOST_USED), " experts");
	if (k.has("expert_feed_forward_length")) e.hidden_dim = k.u32_same("expert_feed_forward_length");
	if (e.hidden_dim == 0) e.hidden_dim = c.hidden_dim;
	m.first = within(k, "leading_dense_block_count", k.u32("leading_dense_block_count", 0), 0, c.n_layers, " layers");
	const auto dense = [&](uint32_t l) {
		return !k.g.find_tensor(tensor_name(l, "ffn_gate_inp")) && k.g.find_tensor(tensor_name(l, "ffn_up"));
	};
	if (!k.has("leading_dense_block_count") && !f.single_parts) // in some files only the tensors show it
		while (m.first < c.n_layers && dense(m.first)) ++m.first;
	m.period = std::max(k.u32("interleave_moe_layer_step", 1), 1u);
	if (f.single_parts)
		m.layers = read_mlp_layers(k, c);
	else if (f.dense_between)
		for (uint32_t l = 0; l < c.n_layers; ++l) m.layers.push_back(!dense(l));
	for (const char* key : {"moe_latent_size", "expert_latent_length"}) {
		if (!k.has(key)) continue;
		e.latent_dim = within(k, key, k.u32(key), 1, c.dim, " channels");
		if (e.beside_mlp || e.at_input || e.weigh_input)
			fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} without a latent of experts", k.g.name(),
			     k.key(key), e.latent_dim, f.arch);
	}
	uint32_t first = 0;
	while (first < c.n_layers && !m.has(first)) ++first;
	if (first == c.n_layers) { // every layer is dense
		e = {};
		return m;
	}
	e.gating = read_gating(k, e);
	e.normalise = k.flag("expert_weights_norm", e.normalise);
	const float scale = k.f32("expert_weights_scale", 0);
	if (scale != 0) e.scale = k.positive("expert_weights_scale", 1); // some files write 0 for "no scaling"
	// the first layers may have tables in place of biases
	const uint32_t looked_at = f.compressed ? std::min(k.u32("hash_layer_count", 0), c.n_layers - 1) : 0;
	look_at_tensors(k, f.layer.mlp, std::max(first, looked_at), e);
	if (e.weigh_input && (e.bias || e.factors))
		fail(Code::Unsupported, "{}: tensor {} does not fit {}, where weights of experts multiply their inputs",
		     k.g.name(), tensor_name(first, "ffn_down_exps", e.bias ? "bias" : "scale"), f.arch);
	// Files of GLM-4.7-Flash do not say it. The models of the family that choose by softmax have no bias.
	if (f.latent && e.choice_bias && !k.u32("expert_gating_func", 0)) e.gating = Gating::Sigmoid;
	read_groups(k, e);
	constexpr uint64_t kMost = UINT32_MAX / 4; // rows of all experts, and sums of a few such counts, stay in 32 bits
	if (uint64_t(n) * e.hidden_dim > kMost || uint64_t(n) * c.dim > kMost || e.shared_dim > kMost)
		fail(Code::Format, "{}: {} experts of {} channels, {} wide, {} shared: too large; the file is damaged",
		     k.g.name(), n, e.hidden_dim, c.dim, e.shared_dim);
	return m;
}

void place_experts(Config& c, const Mixture& m) {
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		c.layers[l].experts = m.has(l) ? m.experts : Experts{};
		if (c.layers[l].experts.at_input) c.layers[l].hidden_dim = c.dim;
	}
}

void place_value_experts(const ConfigKeys& k, const Family& f, Config& c) {
	const char *key = "attention.value_expert_count", *used = "attention.value_expert_used_count";
	const uint32_t n = f.value_experts ? k.u32(key, 0) : 0;
	if (n == 0) return;
	within(k, key, n, 1, KV_MOST_EXPERTS, " experts");
	const uint32_t chosen = within(k, used, k.u32(used), 1, std::min(n, KV_MOST_USED), " experts");
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		Layer& layer = c.layers[l];
		const Experts& e = layer.experts;
		if (!e.n) continue;
		layer.value_experts = {.n = n,
		                       .used = chosen,
		                       .hidden_dim = layer.n_kv_heads * layer.head_dim,
		                       .gating = e.gating,
		                       .normalise = e.normalise,
		                       .scale = e.scale};
		layer.value_experts.choice_bias = k.g.find_tensor(tensor_name(l, "attn_v_gate", "bias")) != nullptr;
		if (uint64_t(n) * layer.value_experts.hidden_dim > UINT32_MAX / 4)
			fail(Code::Format, "{}: {} experts of {} values: too large; the file is damaged", k.g.name(), n,
			     layer.value_experts.hidden_dim);
	}
}

void add_expert_specs(std::vector<TensorSpec>& out, const Layer& layer, uint32_t l, uint32_t dim, uint32_t vocab) {
	const Experts& e = layer.experts;
	auto matrix = [&](const char* what, uint32_t rows, uint32_t cols) {
		out.push_back({tensor_name(l, what), rows, cols, true});
	};
	auto vector = [&](const char* what, uint32_t n, const char* kind = "bias") {
		out.push_back({tensor_name(l, what, kind), 1, n, false});
	};
	const uint32_t width = e.width(dim);
	auto matrices = [&](const char* what, uint32_t rows, uint32_t cols, bool halves = false) {
		out.push_back({tensor_name(l, what), e.n * rows, cols, true, e.n, halves});
		if (e.bias) out.push_back({tensor_name(l, what, "bias"), 1, e.n * rows, false, e.n, halves});
	};
	matrix("ffn_gate_inp", e.n, dim);
	if (e.router_bias) vector("ffn_gate_inp", e.n);
	if (e.beside_mlp) {
		vector("ffn_gate_inp", dim, "scale");
		for (const char* norm : {"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"}) vector(norm, dim, "weight");
	}
	if (e.at_input) vector("ffn_norm_exps", dim, "weight");
	if (e.choice_bias && e.choice_bias_bare)
		out.push_back({fmt::format("blk.{}.exp_probs_b", l), 1, e.n, false});
	else if (e.choice_bias)
		vector("exp_probs_b", e.n);
	if (e.by_token) {
		TensorSpec table{fmt::format("blk.{}.{}", l, kTokenExperts), 1, e.used * vocab, false, vocab};
		table.words = true;
		out.push_back(table);
	}
	if (e.latent_dim) {
		matrix(e.latent_down, width, dim);
		if (e.latent_norm) vector(kLatentNorm, width, "weight");
		matrix(e.latent_up, dim, width);
	}
	if (e.fused_gate_up) {
		matrices("ffn_gate_up_exps", 2 * e.hidden_dim, width, true);
	} else {
		if (layer.mlp == MlpKind::Gated) matrices("ffn_gate_exps", e.hidden_dim, width);
		matrices("ffn_up_exps", e.hidden_dim, width);
	}
	matrices("ffn_down_exps", width, e.hidden_dim);
	if (e.factors) vector("ffn_down_exps", e.n, "scale");
	if (!e.shared_dim) return;
	if (e.shared_gate) matrix("ffn_gate_inp_shexp", 1, dim);
	if (layer.mlp == MlpKind::Gated && !e.shared_fused) matrix("ffn_gate_shexp", e.shared_dim, dim);
	matrix("ffn_up_shexp", e.shared_fused ? 2 * e.shared_dim : e.shared_dim, dim);
	matrix("ffn_down_shexp", dim, e.shared_dim);
}

bool is_expert_tensor(std::string_view name) {
	for (const char* part :
	     {"_exps.", "_chexps.", "_shexp.", ".ffn_gate_inp", ".ffn_latent_", ".ffn_routed_", ".exp_probs_b"})
		if (name.find(part) != name.npos) return true;
	return false;
}

} // namespace kvrun
