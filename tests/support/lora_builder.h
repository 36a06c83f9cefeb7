// Adapters with random matrices for a model, and the model with them merged into its weights, computed here.
#pragma once
#include "engine/core/block_quant.h"
#include "models/config.h"
#include "tests/support/gguf_builder.h"
#include <cmath>
#include <map>
#include <random>
#include <regex>

namespace kvrun {

// Matrices of layers that adapters usually change. Those of experts with a clamped SwiGLU cannot be changed.
inline bool is_projection(const GgufTensor& t) {
	static const std::regex names(
	    R"(blk\.\d+\.(attn_(q|k|v|qkv|output|gate|q_a|q_b|kv_a_mqa)|ffn_(gate|up|down)(_shexp)?|)"
	    R"(time_mix_(receptance|key|value|output)|channel_mix_(key|value)|)"
	    R"(ssm_(in|out|ba)|shortconv\.(in|out)_proj|inp_gate|proj)\.weight)");
	static const std::regex experts(R"(blk\.\d+\.ffn_(gate|up|gate_up|down)_exps\.weight)");
	const std::string name(t.name);
	return t.n_dims == 2 ? std::regex_match(name, names) : t.n_dims == 3 && std::regex_match(name, experts);
}

inline std::vector<float> tensor_values(const Gguf& g, const GgufTensor& t) {
	std::vector<std::byte> bytes(t.bytes);
	g.read(t, 0, bytes);
	std::vector<float> out(t.rows() * t.cols());
	dequantise_row(t.type, bytes.data(), out.data(), out.size());
	return out;
}

struct LoraPair {
	std::vector<float> a, b; // (rank, n), (d, rank), for each expert
	uint32_t rank, experts;
};

// A pair for each projection. B A is about half as large as the weights.
inline std::map<std::string, LoraPair> random_pairs(const Gguf& g, uint32_t rank, uint32_t seed) {
	std::mt19937 rng(seed);
	std::normal_distribution<float> normal;
	std::map<std::string, LoraPair> out;
	const std::string_view arch = g.text("general.architecture");
	const bool clamped = arch == "gpt-oss" || arch == "minimax-m3";
	for (const GgufTensor& t : g.tensors()) {
		if (!is_projection(t) || (t.n_dims == 3 && clamped)) continue;
		double squares = 0;
		for (const float x : tensor_values(g, t)) squares += double(x) * double(x);
		const float size = float(0.5 * std::sqrt(squares / double(t.rows() * t.cols()) / rank));
		const auto experts = uint32_t(t.n_dims == 3 ? t.shape[2] : 1);
		LoraPair p{std::vector<float>(experts * rank * t.cols()), std::vector<float>(t.rows() * rank), rank, experts};
		for (float& x : p.a) x = normal(rng);
		for (float& x : p.b) x = size * normal(rng);
		out.emplace(t.name, std::move(p));
	}
	return out;
}

inline GgufBuilder lora_file(const Gguf& model, const std::map<std::string, LoraPair>& pairs, float alpha) {
	GgufBuilder b;
	b.text("general.type", "adapter").text("general.architecture", model.text("general.architecture"));
	b.text("adapter.type", "lora").f32("adapter.lora.alpha", alpha);
	for (const auto& [name, p] : pairs) {
		const size_t all = size_t(p.rank) * p.experts;
		if (p.experts == 1) {
			b.tensor_f32(name + ".lora_a", {p.a.size() / all, p.rank}, p.a);
			b.tensor_f32(name + ".lora_b", {p.rank, p.b.size() / all}, p.b);
			continue;
		}
		b.tensor_f32(name + ".lora_a", {p.a.size() / all, p.rank, p.experts}, p.a);
		b.tensor_f32(name + ".lora_b", {p.rank, p.b.size() / all, p.experts}, p.b);
	}
	return b;
}

// The model with W + factor * B A in place of W, in f32.
inline GgufBuilder merged(const Gguf& model,
                          const std::vector<std::pair<std::map<std::string, LoraPair>, float>>& all) {
	const std::string arch(model.text("general.architecture"));
	GgufBuilder m = GgufBuilder::copy_as(model, arch);
	// The copy has attn_kv_b in two parts (Gguf::splits_latents()), which go with other keys.
	if (model.splits_latents() && !model.find(arch + ".attention.key_length_mla")) {
		const Latent latent = read_config(model).layers[0].latent;
		m.u32(arch + ".attention.key_length_mla", latent.nope_dim + latent.rope_dim);
		m.u32(arch + ".attention.value_length_mla", latent.v_dim);
		m.u32(arch + ".attention.value_length", latent.rank);
	}
	for (const GgufTensor& t : model.tensors()) {
		if (!is_projection(t) || !all.front().first.contains(std::string(t.name))) continue;
		std::vector<float> w = tensor_values(model, t);
		const std::string name(t.name), factor_name = name.substr(0, name.rfind('.')) + ".scale"; // of NVFP4
		const GgufTensor* scale = has_row_factor(t.type) ? model.find_tensor(factor_name) : nullptr;
		if (scale && t.n_dims == 2) { // not of experts
			const float by = tensor_values(model, *scale).front();
			for (float& x : w) x *= by;
			m.erase_tensor(factor_name);
		}
		for (const auto& [pairs, factor] : all) {
			const LoraPair& p = pairs.at(std::string(t.name));
			for (uint64_t row = 0; row < t.rows(); ++row)
				for (uint64_t col = 0; col < t.cols(); ++col) {
					double sum = 0;
					const float* a = &p.a[row / (t.rows() / p.experts) * p.rank * t.cols()];
					for (uint32_t r = 0; r < p.rank; ++r) sum += double(p.b[row * p.rank + r]) * a[r * t.cols() + col];
					w[row * t.cols() + col] += float(factor * sum);
				}
		}
		m.find(std::string(t.name)) = {std::string(t.name),
		                               t.n_dims == 3
		                                   ? std::vector<uint64_t>{t.cols(), t.rows() / t.shape[2], t.shape[2]}
		                                   : std::vector<uint64_t>{t.cols(), t.rows()},
		                               GgufBuilder::type_number(DType::F32),
		                               {reinterpret_cast<const char*>(w.data()), w.size() * 4}};
	}
	return m;
}

} // namespace kvrun
