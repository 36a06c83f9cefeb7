// The tensors that a model of a config has.
#include "models/assistant.h"
#include "models/compressed.h"
#include "models/experts.h"
#include "models/fusion.h"
#include "models/hyper_streams.h"
#include "models/indexer.h"
#include "models/latent.h"
#include "models/layer_inputs.h"
#include "models/prediction.h"
#include "models/recurrent.h"
#include "models/streams.h"
#include "models/text_encoder.h"
#include <algorithm>

namespace kvrun {
namespace {

// (outermost, ..., innermost), at least two.
std::string shape_text(const uint64_t* shape) {
	const std::string matrix = fmt::format("{}, {}", shape[1], shape[0]);
	if (shape[3] != 1) return fmt::format("({}, {}, {})", shape[3], shape[2], matrix);
	return shape[2] != 1 ? fmt::format("({}, {})", shape[2], matrix) : fmt::format("({})", matrix);
}

void add_mlp_specs(std::vector<TensorSpec>& out, const Layer& layer, uint32_t l, uint32_t dim) {
	const uint32_t hidden = layer.hidden_dim;
	auto matrix = [&](const char* what, uint64_t rows, uint32_t cols) {
		out.push_back({fmt::format("blk.{}.{}.weight", l, what), uint32_t(rows), cols, true});
	};
	auto bias = [&](const char* what, uint32_t n, bool has = true) {
		if (layer.mlp_bias && has) out.push_back({fmt::format("blk.{}.{}.bias", l, what), 1, n, false});
	};
	if (layer.mlp == MlpKind::Gated && !layer.fused_gate_up)
		matrix("ffn_gate", hidden, dim), bias("ffn_gate", hidden, layer.in_bias);
	const uint32_t up = layer.fused_gate_up ? 2 * hidden : hidden;
	matrix(up_name(layer), up, dim), bias(up_name(layer), up, layer.in_bias);
	if (layer.sub_norms) out.push_back({fmt::format("blk.{}.{}.weight", l, kMlpSubNorm), 1, hidden, false});
	matrix(down_name(layer), dim, hidden), bias(down_name(layer), dim);
	if (layer.mlp_shift) out.push_back({fmt::format("blk.{}.channel_mix_lerp_k.weight", l), 1, dim, false});
}

void add_attention_specs(std::vector<TensorSpec>& out, const Layer& layer, uint32_t l, uint32_t dim, bool owns) {
	const uint32_t q = layer.n_heads * layer.head_dim, kv = layer.n_kv_heads * layer.head_dim,
	               v = layer.n_kv_heads * value_dim(layer);
	const uint32_t in = layer.reads_pair ? 2 * dim : dim;
	auto name = [l](const char* what) { return fmt::format("blk.{}.{}", l, what); };
	auto matrix = [&](std::string tensor, uint64_t rows, uint32_t cols) {
		out.push_back({std::move(tensor), uint32_t(rows), cols, true});
	};
	auto vector = [&](std::string tensor, uint32_t n) { out.push_back({std::move(tensor), 1, n, false}); };
	if (layer.gate_apart) matrix(name("attn_gate.weight"), layer.gate_by_head ? layer.n_heads : q, dim);
	if (layer.fused_qkv) {
		matrix(name("attn_qkv.weight"), uint64_t(q) + uint64_t(kv) + v, dim);
		if (layer.qkv_bias) vector(name("attn_qkv.bias"), q + kv + v);
	} else {
		if (layer.output_gate && !layer.gate_apart) {
			TensorSpec both{name("attn_q.weight"), 2 * q, dim, true, layer.n_heads, true};
			both.flat = true;
			out.push_back(both);
		} else {
			matrix(name("attn_q.weight"), q, in);
		}
		if (owns) matrix(name("attn_k.weight"), kv, in);
		if (const Experts& e = layer.value_experts; e.n) {
			matrix(name("attn_v_gate.weight"), e.n, dim);
			if (e.choice_bias) vector(name("attn_v_gate.bias"), e.n);
			out.push_back({name("attn_v_exps.weight"), e.n * e.hidden_dim, dim, true, e.n});
		} else if (owns && !layer.v_is_k) {
			matrix(name("attn_v.weight"), v, in);
		}
		if (layer.qkv_bias) vector(name("attn_q.bias"), q);
	}
	if (layer.qkv_bias && owns && !layer.fused_qkv) {
		vector(name("attn_k.bias"), kv);
		vector(name("attn_v.bias"), v);
	}
	if (layer.qk_norm == QkNorm::HeadGain) {
		vector(name("attn_q_norm.weight"), layer.n_heads);
		out.back().depth = layer.n_heads;
	} else if (layer.qk_norm != QkNorm::None && layer.qk_norm != QkNorm::HeadUnit) {
		const bool all = layer.qk_norm != QkNorm::Head && layer.qk_norm != QkNorm::HeadLast;
		vector(name("attn_q_norm.weight"), all ? q : layer.head_dim);
		if (layer.qk_norm == QkNorm::HeadLayer) out.back().depth = layer.n_heads;
		if (layer.qk_norm_bias) vector(name("attn_q_norm.bias"), q);
		if (owns) vector(name("attn_k_norm.weight"), all ? kv : layer.head_dim);
		if (owns && layer.qk_norm_bias) vector(name("attn_k_norm.bias"), kv);
		if (owns && layer.qk_norm == QkNorm::HeadLayer) out.back().depth = layer.n_kv_heads;
	}
	if (layer.sinks) vector(name("attn_sinks.weight"), layer.n_heads);
	if (layer.sub_norms) vector(name(kAttnSubNorm) + ".weight", layer.n_heads * value_dim(layer));
	matrix(name("attn_output.weight"), dim, layer.n_heads * value_dim(layer));
	if (layer.out_bias) vector(name("attn_output.bias"), dim);
}

} // namespace

void check_tensor(const Gguf& g, const TensorSpec& s) {
	const GgufTensor* t = g.find_tensor(s.name);
	if (!t) fail(Code::Format, "{}: tensor {} is missing; get the file again", g.name(), s.name);
	if (s.words != (t->type == DType::U32))
		fail(Code::Format, "{}: tensor {} is {}, expected {}; wrong or damaged file", g.name(), s.name,
		     dtype_info(t->type).name, s.words ? "I32" : "numbers");
	const uint32_t depth = s.flat ? 1 : s.depth;
	uint64_t want[] = {uint64_t(s.cols) * s.together, s.rows / depth / s.together, depth, 1};
	if (!s.matrix) want[0] = s.cols / s.depth, want[1] = s.depth, want[2] = 1;
	if (!s.matrix && want[0] == 1 && t->shape[1] == 1) std::swap(want[0], want[1]); // numbers in one row: as good
	uint64_t has[4];
	std::ranges::copy(t->shape, has);
	for (int i = 0; i < 2 && !s.matrix && has[1] == 1; ++i) std::swap(has[1], has[2 + i]); // (depth, 1, cols): as good
	if (!std::ranges::equal(want, has))
		fail(Code::Format, "{}: tensor {} is {}, the config says {}; wrong or damaged file", g.name(), s.name,
		     shape_text(t->shape), shape_text(want));
}

std::vector<TensorSpec> tensor_specs(const Config& c) {
	std::vector<TensorSpec> out;
	auto matrix = [&](std::string name, uint64_t rows, uint32_t cols) {
		out.push_back({std::move(name), uint32_t(rows), cols, true});
	};
	auto vector = [&](std::string name, uint32_t n) { out.push_back({std::move(name), 1, n, false}); };
	auto norm_vectors = [&](const std::string& name) {
		if (is_bare(c.norm)) return;
		vector(name + ".weight", c.dim);
		if (c.norm == NormKind::LayerBiased) vector(name + ".bias", c.dim);
	};
	if (c.prediction.block) {
		add_prediction_inputs(out, c);
	} else if (!c.fusion.layers.empty()) {
		add_fusion_specs(out, c);
	} else {
		matrix("token_embd.weight", c.vocab, c.dim);
		if (c.target_dim) add_assistant_specs(out, c);
		add_layer_input_specs(out, c);
		add_stream_specs(out, c);
		add_hyper_specs(out, c);
		add_text_input_specs(out, c);
	}
	for (uint32_t i = 0; i < layers_with_weights(c); ++i) {
		const Layer& layer = c.layers[i];
		const uint32_t l = i + c.prediction.block; // in the file
		auto name = [l](const char* what) { return fmt::format("blk.{}.{}", l, what); };
		auto norm = [&](const char* what) { norm_vectors(name(what)); };
		if (layer.attn_norm) norm(layer.attn_norm_name);
		if (layer.recurrent.n_heads) add_recurrent_specs(out, layer.recurrent, l, c.dim);
		if (layer.latent.rank)
			add_latent_specs(out, layer, l, c.dim);
		else if (attends(layer))
			add_attention_specs(out, layer, l, c.dim, has_own_kv(c, i));
		const auto out_norm = [&](const char* what) { layer.out_norms_bare ? vector(name(what), c.dim) : norm(what); };
		if (layer.attn_out_norm) out_norm(attn_out_norm_name(layer));
		if (layer.sums_twice) norm(kSecondNorm);
		if (layer.mlp_norm_bare)
			vector(name(layer.mlp_norm_name), c.dim);
		else if (has_mlp_norm(layer.mlp_input))
			norm(layer.mlp_norm_name);
		if (layer.experts.n) add_expert_specs(out, layer, l, c.dim, c.vocab);
		if (layer.mlp != MlpKind::None && layer.experts.with_mlp()) add_mlp_specs(out, layer, l, c.dim);
		if (layer.mlp_out_norm) out_norm(mlp_out_norm_name(layer));
		if (c.prediction.block) continue;
		add_layer_input_specs(out, c, l);
		add_stream_specs(out, c, l);
		add_hyper_specs(out, c, l);
		add_indexer_specs(out, c, l);
		add_block_specs(out, c, l);
	}
	if (c.prediction.block) {
		add_prediction_outputs(out, c);
		return out;
	}
	if (!c.final_norm.empty()) norm_vectors(c.final_norm);
	if (c.fusion.layers.empty() ? !c.tied_embedding : c.fusion.own_head) matrix("output.weight", c.vocab, c.dim);
	if (c.output_bias) vector("output.bias", c.vocab);
	add_text_head_specs(out, c);
	return out;
}

} // namespace kvrun
