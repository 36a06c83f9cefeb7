// Recurrent layers as files describe them.
#include "models/recurrent.h"
#include <algorithm>

namespace kvrun {
namespace {

uint32_t read_size(const ConfigKeys& k, const char* key, uint32_t lowest, uint32_t highest) {
	const uint32_t v = k.u32(key);
	if (v < lowest || v > highest)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs {} to {}", k.g.name(), k.key(key), v, lowest, highest);
	return v;
}

// A flag per layer, draft layers included; or a period: every so-many-th layer attends.
std::vector<bool> read_layers(const ConfigKeys& k, const Family& f, const Config& c) {
	std::vector<bool> out;
	if (f.recurrent_shape.beside || f.all_recurrent) return std::vector<bool>(c.n_layers, true);
	if (attends_by_kv_heads(f)) {
		for (const uint32_t n : k.u32_each("attention.head_count_kv", c.n_layers, k.u32("block_count")))
			out.push_back(n == 0);
		if (f.single_parts) {
			const std::vector<bool> mlp = read_mlp_layers(k, c);
			for (uint32_t l = 0; l < out.size(); ++l) {
				if (!out[l] && mlp[l])
					fail(Code::Unsupported, "{}: layer {} has KV heads and an MLP; kvrun runs {} with one of them",
					     k.g.name(), l, f.arch);
				out[l] = out[l] && !mlp[l];
			}
		}
		return out;
	}
	const std::string key = k.key("attention.recurrent_layers");
	if (const GgufEntry* e = k.g.find(key); e && e->type == GgufType::Array && e->element == GgufType::Bool) {
		for (const std::byte b : e->bytes) out.push_back(b != std::byte(0));
		if (out.size() < c.n_layers)
			fail(Code::Format, "{}: key {} has {} elements, the model has {} layers; the file is damaged", k.g.name(),
			     key, out.size(), c.n_layers);
		out.resize(c.n_layers);
	} else {
		const uint32_t period = std::max(k.u32("full_attention_interval", 4), 1u);
		for (uint32_t l = 0; l < c.n_layers; ++l) out.push_back((l + 1) % period != 0);
	}
	return out;
}

void read_removal(const ConfigKeys& k, const Family& f, const Config& c, Recurrent& r) {
	r.k_dim = r.v_dim = read_size(k, "wkv.head_size", 8, kMostRemovalRows);
	if (r.k_dim % 8 != 0 || c.dim % r.k_dim != 0)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs multiples of 8 that divide the {} channels", k.g.name(),
		     k.key("wkv.head_size"), r.k_dim, c.dim);
	r.n_heads = r.n_key_heads = c.dim / r.k_dim, r.taps = 2;
	r.shifts = f.layer.mlp_shift ? 2 : 1;
	r.decay_rank = read_size(k, "attention.decay_lora_rank", 1, c.dim);
	r.rate_rank = read_size(k, "attention.iclr_lora_rank", 1, c.dim);
	r.share_rank = read_size(k, "attention.value_residual_mix_lora_rank", 1, c.dim);
	if (k.u32("attention.gate_lora_rank", 0)) r.gate_rank = read_size(k, "attention.gate_lora_rank", 1, c.dim);
	r.normed = k.g.find_tensor("blk.0.time_mix_ln.weight") != nullptr;
}

} // namespace

bool attends_by_kv_heads(const Family& f) {
	return f.recurrent && !f.all_recurrent && f.recurrent_shape.kind != RecurrentKind::DeltaRule &&
	       !f.recurrent_shape.beside;
}

RecurrentLayers read_recurrent(const ConfigKeys& k, const Family& f, const Config& c) {
	if (!f.recurrent) return {};
	RecurrentLayers r{f.recurrent_shape, read_layers(k, f, c)};
	const std::vector<bool> mlp = f.single_parts ? read_mlp_layers(k, c) : std::vector<bool>(c.n_layers);
	bool some_attend = r.shape.beside || f.all_recurrent;
	for (uint32_t l = 0; l < c.n_layers; ++l) some_attend |= !r.layers[l] && !mlp[l];
	if (!some_attend)
		fail(Code::Unsupported, "{}: all {} layers are recurrent; kvrun runs {} with layers that attend", k.g.name(),
		     c.n_layers, f.arch);
	if (std::ranges::find(r.layers, true) == r.layers.end()) return {};
	if (r.shape.kind == RecurrentKind::ShortConv) {
		r.shape.taps = read_size(k, "shortconv.l_cache", 2, kMostTaps);
		r.shape.n_heads = 1, r.shape.v_dim = c.dim;
		return r;
	}
	if (r.shape.kind == RecurrentKind::Removal) {
		read_removal(k, f, c, r.shape);
		return r;
	}
	constexpr uint32_t kMostHeads = 1024;
	r.shape.taps = read_size(k, "ssm.conv_kernel", 2, kMostTaps);
	if (r.shape.kind == RecurrentKind::ChannelDelta) {
		r.shape.k_dim = r.shape.v_dim = read_size(k, "kda.head_dim", 8, kMostStateRows);
		r.shape.n_heads = r.shape.n_key_heads = c.n_heads;
		if (r.shape.k_dim % 8 != 0 || c.n_heads > kMostHeads)
			fail(Code::Unsupported,
			     "{}: recurrent layers have {} heads of {} channels; kvrun runs multiples of 8, and "
			     "up to {} heads",
			     k.g.name(), c.n_heads, r.shape.k_dim, kMostHeads);
		if (r.shape.full_gates && !k.flag("kda.safe_gate", true))
			fail(Code::Unsupported, "{}: key {} is false; kvrun runs {} with bounded decays", k.g.name(),
			     k.key("kda.safe_gate"), k.arch);
		if (r.shape.full_gates || k.has("kda.gate_lower_bound")) {
			r.shape.bound = k.f32("kda.gate_lower_bound", 0);
			if (!(r.shape.bound < 0))
				fail(Code::Format, "{}: key {} is {}, expected less than 0; the file is damaged", k.g.name(),
				     k.key("kda.gate_lower_bound"), r.shape.bound);
		}
		return r;
	}
	if (r.shape.kind == RecurrentKind::SelectiveScan) {
		r.shape.k_dim = read_size(k, "ssm.state_size", 4, kMostChannelRows);
		if (r.shape.k_dim % 4 != 0)
			fail(Code::Unsupported, "{}: key {} is {}; kvrun runs multiples of 4", k.g.name(), k.key("ssm.state_size"),
			     r.shape.k_dim);
		r.shape.n_heads = r.shape.n_key_heads = 1;
		r.shape.v_dim = read_size(k, "ssm.inner_size", 1, 1 << 20);
		r.shape.rank = read_size(k, "ssm.time_step_rank", 1, r.shape.v_dim);
		r.shape.conv_bias = true;
		const auto first = uint32_t(std::ranges::find(r.layers, true) - r.layers.begin());
		if (k.g.find_tensor(fmt::format("blk.{}.ssm_dt_norm.weight", first)))
			r.shape.step_norm = StepNorm::Weighted;
		else if (k.flag("ssm.dt_b_c_rms", false))
			r.shape.step_norm = StepNorm::Unit;
		return r;
	}
	r.shape.k_dim = read_size(k, "ssm.state_size", 8, kMostStateRows);
	r.shape.n_key_heads = read_size(k, "ssm.group_count", 1, kMostHeads);
	r.shape.n_heads = read_size(k, "ssm.time_step_rank", 1, kMostHeads);
	const uint32_t inner = read_size(k, "ssm.inner_size", 1, kMostHeads * kMostStateRows);
	if (r.shape.k_dim % 8 != 0)
		fail(Code::Unsupported, "{}: key {} is {}; kvrun runs multiples of 8", k.g.name(), k.key("ssm.state_size"),
		     r.shape.k_dim);
	if (r.shape.n_heads % r.shape.n_key_heads != 0 || inner % r.shape.n_heads != 0)
		fail(Code::Format, "{}: {} heads of recurrent layers share {} key heads and {} channels; the file is damaged",
		     k.g.name(), r.shape.n_heads, r.shape.n_key_heads, inner);
	r.shape.v_dim = inner / r.shape.n_heads;
	if (r.shape.kind == RecurrentKind::StateSpace) {
		const auto first = uint32_t(std::ranges::find(r.layers, true) - r.layers.begin());
		r.shape.normed = k.g.find_tensor(fmt::format("blk.{}.ssm_norm.weight", first)) || !r.shape.beside;
		r.shape.conv_bias = k.g.find_tensor(fmt::format("blk.{}.ssm_conv1d.bias", first)) != nullptr;
	}
	if (r.shape.v_dim % 4 != 0 || r.shape.v_dim > kMostStateRows)
		fail(Code::Unsupported, "{}: heads of recurrent layers have {} values; kvrun runs multiples of 4 up to {}",
		     k.g.name(), r.shape.v_dim, kMostStateRows);
	return r;
}

void place_recurrent(Config& c, const RecurrentLayers& r) {
	for (uint32_t l = 0; l < r.layers.size(); ++l) {
		Layer& layer = c.layers[l];
		if (!r.layers[l]) continue;
		layer.recurrent = r.shape;
		if (r.shape.kind == RecurrentKind::Removal) c.first_values |= l > 0, layer.recurrent.share_rank *= l > 0;
		if (r.shape.beside) continue;
		layer.window = {}, layer.latent = {};
		layer.output_gate = false, layer.qk_norm = QkNorm::None, layer.qkv_bias = layer.out_bias = false;
	}
}

std::vector<bool> read_mlp_layers(const ConfigKeys& k, const Config& c) {
	std::vector<bool> out;
	for (const uint32_t n : k.u32_each("feed_forward_length", c.n_layers, k.u32("block_count"))) out.push_back(n != 0);
	return out;
}

void place_single_parts(Config& c, const std::vector<bool>& mlp) {
	for (uint32_t l = 0; l < c.n_layers; ++l) {
		Layer& layer = c.layers[l];
		if (mlp[l])
			layer.window = {}, layer.mixes = layer.attn_norm = false, layer.mlp_norm_name = "attn_norm";
		else
			layer.mlp = MlpKind::None, layer.mlp_input = MlpInput::Raw, layer.experts = {};
	}
}

void add_recurrent_specs(std::vector<TensorSpec>& out, const Recurrent& r, uint32_t l, uint32_t dim) {
	const auto name = [l](const char* what) { return fmt::format("blk.{}.{}", l, what); };
	const auto vector = [&](const char* what, uint32_t n, uint32_t depth = 1) {
		out.push_back({name(what), 1, n, false, depth});
	};
	if (r.kind == RecurrentKind::ShortConv) {
		out.push_back({name("shortconv.in_proj.weight"), 3 * r.values(), dim, true});
		vector("shortconv.conv.weight", r.channels() * r.taps, r.channels());
		out.push_back({name("shortconv.out_proj.weight"), dim, r.values(), true});
		return;
	}
	if (r.kind == RecurrentKind::Removal) {
		const auto matrix = [&](const char* what, uint32_t rows, uint32_t cols) {
			out.push_back({name(what), rows, cols, true});
		};
		const auto both = [&](char part, uint32_t rank) { // the two matrices of a product
			if (!rank) return;
			matrix(fmt::format("time_mix_{}1.weight", part).c_str(), rank, dim);
			matrix(fmt::format("time_mix_{}2.weight", part).c_str(), r.values(), rank);
			if (part != 'g') vector(fmt::format("time_mix_{}0.weight", part).c_str(), r.values());
		};
		vector("time_mix_lerp_fused.weight", r.mixes() * dim, r.mixes());
		for (const char* what : {"time_mix_receptance.weight", "time_mix_key.weight", "time_mix_value.weight"})
			matrix(what, r.values(), dim);
		both('w', r.decay_rank), both('a', r.rate_rank), both('v', r.share_rank), both('g', r.gate_rank);
		for (const char* what : {"time_mix_k_k.weight", "time_mix_k_a.weight", "time_mix_r_k.weight"})
			vector(what, r.decays());
		if (r.normed) vector("time_mix_ln.weight", r.values()), vector("time_mix_ln.bias", r.values());
		matrix("time_mix_output.weight", dim, r.values());
		return;
	}
	if (r.kind == RecurrentKind::SelectiveScan) {
		out.push_back({name("ssm_in.weight"), 2 * r.values(), dim, true});
		vector("ssm_conv1d.weight", r.channels() * r.taps, r.channels());
		vector("ssm_conv1d.bias", r.channels());
		out.push_back({name("ssm_x.weight"), r.rank + 2 * r.k_dim, r.values(), true});
		if (r.step_norm == StepNorm::Weighted) {
			vector("ssm_dt_norm.weight", r.rank);
			vector("ssm_b_norm.weight", r.k_dim), vector("ssm_c_norm.weight", r.k_dim);
		}
		out.push_back({name("ssm_dt.weight"), r.values(), r.rank, true});
		vector("ssm_dt.bias", r.values());
		vector("ssm_a", r.values() * r.k_dim, r.values());
		vector("ssm_d", r.values());
		out.push_back({name("ssm_out.weight"), dim, r.values(), true});
		return;
	}
	if (r.kind == RecurrentKind::StateSpace) {
		out.push_back({name("ssm_in.weight"), r.values() + r.channels() + r.n_heads, dim, true});
		vector("ssm_conv1d.weight", r.channels() * r.taps, r.channels());
		if (r.conv_bias) vector("ssm_conv1d.bias", r.channels());
		vector("ssm_dt.bias", r.n_heads);
		vector("ssm_a", r.n_heads, r.n_heads);
		vector("ssm_d", r.n_heads, r.n_heads);
		if (r.normed) vector("ssm_norm.weight", r.values(), r.n_key_heads);
		out.push_back({name("ssm_out.weight"), dim, r.values(), true});
		return;
	}
	if (r.kind == RecurrentKind::ChannelDelta) {
		const auto matrix = [&](const char* what, uint32_t rows, uint32_t cols) {
			out.push_back({name(what), rows, cols, true});
		};
		for (const char* what : {"attn_q.weight", "attn_k.weight", "attn_v.weight"}) matrix(what, r.values(), dim);
		for (const char* what : {"ssm_conv1d_q.weight", "ssm_conv1d_k.weight", "ssm_conv1d_v.weight"})
			vector(what, r.values() * r.taps, r.values());
		if (r.full_gates) {
			matrix("ssm_f_a.weight", r.decays(), dim), matrix("ssm_g_a.weight", r.values(), dim);
		} else {
			matrix("ssm_f_a.weight", r.k_dim, dim), matrix("ssm_f_b.weight", r.decays(), r.k_dim);
			if (r.full_gate)
				matrix("ssm_g.weight", r.values(), dim);
			else
				matrix("ssm_g_a.weight", r.k_dim, dim), matrix("ssm_g_b.weight", r.values(), r.k_dim);
		}
		matrix("ssm_beta.weight", r.n_heads, dim);
		vector("ssm_a", r.n_heads, r.n_heads);
		if (r.bound < 0 && !r.full_gates) out.back().factor = -1; // files of bailingmoe3 have these rates above 0
		vector("ssm_dt.bias", r.decays());
		vector("ssm_norm.weight", r.v_dim);
		matrix("attn_output.weight", dim, r.values());
		return;
	}
	out.push_back({name("attn_qkv.weight"), r.channels(), dim, true});
	out.push_back({name("attn_gate.weight"), r.values(), dim, true});
	if (r.fused_gates) {
		TensorSpec both{name("ssm_ba.weight"), 2 * r.n_heads, dim, true, r.n_key_heads, true};
		both.flat = true;
		out.push_back(both);
	} else {
		out.push_back({name("ssm_beta.weight"), r.n_heads, dim, true});
		out.push_back({name("ssm_alpha.weight"), r.n_heads, dim, true});
	}
	vector("ssm_conv1d.weight", r.channels() * r.taps, r.channels());
	vector("ssm_a", r.n_heads);
	vector("ssm_dt.bias", r.n_heads);
	vector("ssm_norm.weight", r.v_dim);
	out.push_back({name("ssm_out.weight"), dim, r.values(), true});
}

} // namespace kvrun
